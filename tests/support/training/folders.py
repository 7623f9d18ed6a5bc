"""Run folders as a run leaves them, without a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torchsplit_core.training import RunFolder
from torchsplit_core.training.monitor import LaunchRecord, save_launch
from torchsplit_core.values.strategy.run import PredictedStep, RunOptions, RunStrategy
from torchsplit_core.values.training import ParallelConfig, TrainingJob


def left_folder(path: Path, *, steps: int = 6, wanted: int = 6, source: str = "sample:diamond") -> RunFolder:
    """Of a run of two ranks that lost one of them, and is done with so many of its steps."""
    (path / "checkpoints" / "step-00000004").mkdir(parents=True)
    (path / "checkpoints" / "step-00000004" / "manifest.json").write_text("{}")
    (path / "checkpoints" / "step-00000004" / "__0_0.distcp").write_bytes(b"0" * 5000)
    (path / "checkpoints" / "LATEST").write_text("step-00000004\n")
    run = RunFolder(path)
    plan = RunStrategy(
        ParallelConfig(data=2, micro_batch=4), TrainingJob(8, "fp32", "adamw"), PredictedStep(1.5, 0.25)
    )
    save_launch(path, LaunchRecord(source, plan, RunOptions(steps=wanted, checkpoint_every=4)))
    facts: dict[str, Any] = {
        "source": source,
        "steps": wanted,
        "device": "cpu",
        "backend": "gloo",
        "processes": 2,
    }
    run.write_facts(facts, ())
    run.log_event("started", "begins at step 1 with 2 processes", 0)
    for step in range(1, steps + 1):
        run.add_step(step, 2.0 / step, 8, 0.2, 2, 2**20)
    run.log_event("checkpoint", "checkpoint of step 4 is complete: 5000 bytes", 0)
    run.log_event("rank_lost", "rank 1 was ended by SIGKILL, at step 6", 1)
    run.log_event("resumed", "goes on after step 4 with 2 processes", 0)
    if steps >= wanted:
        run.log_event("finished", f"step {steps} of {wanted} is done", 0)
    for rank in range(2):
        told = {
            "rank": rank, "node": "here", "pid": 4000 + rank, "device": "cpu", "time": "2090-01-01T00:00:00.000Z",
            "step": steps, "ended": steps >= wanted, "peak_bytes": 3 * 2**28,
            "parts_s": {"data": 0.01, "forward": 0.05, "backward": 0.1, "agreement": 0.02, "optimizer": 0.02},
        }  # fmt: skip
        (path / "watch" / f"rank-{rank}.json").write_text(json.dumps(told))
    return run
