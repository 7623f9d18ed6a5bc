"""Steps of finished runs on this host, saved beside its other measurements: they calibrate the next estimate."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from torchsplit_core.files.host_measurements import save_measurement, saved_measurement
from torchsplit_core.model_source import ModelSource, parse_source
from torchsplit_core.training.monitor.step_check import CHECKED_STEPS, FIRST_STEPS
from torchsplit_core.training.run_folder import RunFolder
from torchsplit_core.values import InputFault
from torchsplit_core.values.strategy.run import RunOptions, RunStep, RunStrategy
from torchsplit_core.values.training import ParallelConfig, TrainingJob

STEPS_FILE = "training-steps.json"
OTHER_WORK = 1.0
"""Processes beside a run's, in the mean of the last minute, with which its cores count as shared."""
MOST_SAVED = 8
"""Steps of one model on one device type, each of another division or batch."""


def save_run_step(
    root: Path, source: ModelSource, strategy: RunStrategy, options: RunOptions, run: RunFolder
) -> None:
    """Save the median step of a run that is done, in the store's folder `root`, in place of an earlier one like it.

    Left out is a run that says little of another one's step: too short, with work that is divided unevenly or moves, or
    on cores that its processes shared with each other or with other work. Raises InputFault for a folder that cannot be
    read.
    """
    facts = run.facts()
    device_type = _device_type(facts)
    lines = [line["step_s"] for line in run.steps() if line["world_size"] == facts.get("processes")]
    uneven = options.balance or options.shares or strategy.shares or strategy.layers
    if device_type is None or uneven or len(lines) < FIRST_STEPS + CHECKED_STEPS:
        return
    step = RunStep(
        run.path.name,
        datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        ParallelConfig(**facts["choices"]),
        strategy.job.global_batch,
        median(lines[FIRST_STEPS:]),
    )
    key = _key(model_identity(source), device_type, strategy.job)
    earlier = [
        other
        for other in _read(root, key)
        if (other.choices, other.global_batch) != (step.choices, step.global_batch)
    ]
    steps = [asdict(entry) for entry in (step, *earlier[: MOST_SAVED - 1])]
    save_measurement(root / STEPS_FILE, key, {"steps": steps})


def run_steps(root: Path, identity: str, device_type: str, job: TrainingJob) -> tuple[RunStep, ...]:
    """The saved steps of a model (`model_identity`) on that device type in the job's precision and optimizer, newest
    first."""
    return tuple(_read(root, _key(identity, device_type, job)))


def model_identity(source: ModelSource) -> str:
    """What two runs of the same model share: a sample's name, or a file's content and the name in it.

    Of a run it is the model that it trained. Raises InputFault for a file that cannot be read.
    """
    while source.base is not None:
        source = source.base
    if source.kind == "sample":
        return source.text
    try:
        return file_identity(Path(source.path).read_bytes(), source.name)
    except OSError as error:
        raise InputFault(
            source.display_name, f"cannot be read: {error.strerror}", "Check the file."
        ) from error


def file_identity(content: bytes, name: str) -> str:
    """`model_identity` of a Python file with this content, of the client with that name."""
    return f"{hashlib.sha256(content).hexdigest()}:{name}"


def identity_of(source: str, *, trust: bool) -> str | None:
    """`model_identity` of a source as it is written; None where it is none that this process can read."""
    try:
        return model_identity(parse_source(source, trust=trust))
    except InputFault:
        return None


def _device_type(facts: dict[str, Any]) -> str | None:
    """The catalogue's name of the device that each process had; None where it has none, or something shared it."""
    from torchsplit_core.hardware import discover_host

    processes = facts.get("processes", 0)
    if str(facts.get("device", "")).startswith("cuda"):
        gpus = discover_host().gpus
        types = {gpu.gpu_type for gpu in gpus}
        return types.pop() if len(types) == 1 and processes <= len(gpus) else None
    cores = len(os.sched_getaffinity(0))
    # As `agent_variables` sets it for each process.
    threads = int(os.environ.get("OMP_NUM_THREADS") or max(1, cores // max(1, processes)))
    shared = processes * threads > cores or os.getloadavg()[0] > cores + OTHER_WORK
    return f"CPU-{threads}c" if processes and not shared else None


def _key(identity: str, device_type: str, job: TrainingJob) -> str:
    """A hash of what a step depends on, beside its division."""
    from torchsplit_core.hardware import discover_host
    from torchsplit_core.profiling.host_rates import torch_version

    host = discover_host().cpu_name
    facts = (identity, device_type, host, job.precision, job.optimizer, torch_version())
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _read(root: Path, key: str) -> Iterable[RunStep]:
    for entry in saved_measurement(root / STEPS_FILE, key).get("steps", ()):
        try:
            yield RunStep(**{**entry, "choices": ParallelConfig(**entry["choices"])})
        except (KeyError, TypeError):
            # Of an earlier version, or written by somebody else: it can be measured again.
            continue
