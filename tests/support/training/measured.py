"""Folders of finished runs whose steps took so long, without a run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from torchsplit_core.training import RunFolder
from torchsplit_core.training.monitor.step_check import CHECKED_STEPS, FIRST_STEPS
from torchsplit_core.values.training import ParallelConfig

ENOUGH = FIRST_STEPS + CHECKED_STEPS
"""Steps of a run that calibrates."""


def finished_run(path: Path, seconds: float = 0.02, steps: int = ENOUGH, **choices: Any) -> RunFolder:
    """On cores, with steps of which the first are slow."""
    folder = RunFolder(path)
    path.mkdir()
    config = ParallelConfig(**choices)
    folder.write_facts({"processes": config.devices, "device": "cpu", "choices": asdict(config)}, ())
    for step in range(steps):
        folder.add_step(step + 1, 1.0, 8, 9.0 if step < FIRST_STEPS else seconds, config.devices, 1)
    return folder
