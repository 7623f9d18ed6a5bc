"""A training step of a source in a child, measured on this processor or tracked on fake tensors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torchsplit_core.files.fields import NonNegative, Positive, Whole
from torchsplit_core.isolation import AnswerSchema, Limits, run_limited, schema_reader
from torchsplit_core.model_source import parse_source
from torchsplit_core.values import Progress, ignore_progress

Optimizer = Literal["adamw", "sgd"]
CHILD_MODULE = "torchsplit_core.profiling.training_step.child"


class _TrackedPeak(AnswerSchema):
    peak_bytes: Whole


class _TimedSample(AnswerSchema):
    seconds: NonNegative


class _TimedStep(_TrackedPeak):
    seconds: Positive


@dataclass(frozen=True, slots=True)
class StepMeasurement:
    """Seconds of a step (the median of the timed ones) and the peak of torch's allocator in one, in bytes."""

    batch: int
    seconds: float
    peak_bytes: int


def measure_step(
    source: str,
    batch: int,
    *,
    optimizer: Optimizer = "adamw",
    steps: int = 5,
    limits: Limits | None = None,
    trust: bool = False,
    progress: Progress = ignore_progress,
) -> StepMeasurement:
    """Train `batch` sequences a step on this processor, in single precision, in a confined child.

    The loss is the mean square of the outputs. Raises InputFault as `run_limited` does, with these `limits`.
    """
    parsed = parse_source(source, trust=trust)
    result = run_limited(
        f"{CHILD_MODULE}:measure",
        {"source": parsed.text, "trust": trust, "batch": batch, "optimizer": optimizer, "steps": steps},
        limits=limits,
        subject=f"model {Path(parsed.path).name or source}",
        progress=progress,
        read=schema_reader(_TimedStep),
        readable=parsed.files,
    )
    return StepMeasurement(batch, float(result["seconds"]), int(result["peak_bytes"]))


def track_peak(
    source: str,
    batch: int,
    *,
    shards: int = 1,
    reshard: bool = True,
    half: bool = False,
    recompute: bool = False,
    blocks: tuple[str, ...] = (),
    optimizer: Optimizer = "adamw",
    trust: bool = False,
    progress: Progress = ignore_progress,
) -> int:
    """Bytes at the peak of a device in a training step, by torch's memory trackers on fake tensors.

    `shards` devices share the states (FSDPMemTracker with the fake backend; 1: MemTracker); `blocks` (modules) are
    gathered as units, and run again with `recompute`. Raises InputFault if torch cannot do this.
    """
    parsed = parse_source(source, trust=trust)
    result = run_limited(
        f"{CHILD_MODULE}:track",
        {
            "source": parsed.text,
            "trust": trust,
            "batch": batch,
            "shards": shards,
            "reshard": reshard,
            "half": half,
            "recompute": recompute,
            "blocks": list(blocks),
            "optimizer": optimizer,
        },
        subject=f"model {Path(parsed.path).name or source}",
        progress=progress,
        read=schema_reader(_TrackedPeak),
        readable=parsed.files,
    )
    return int(result["peak_bytes"])


def sample_seconds(source: str, *, trust: bool = False, progress: Progress = ignore_progress) -> float:
    """Seconds in which a process fetches a sample of the source's data, in a confined child.

    0 for a client that does not train. Raises InputFault as `run_limited` does.
    """
    parsed = parse_source(source, trust=trust)
    result = run_limited(
        f"{CHILD_MODULE}:time_samples",
        {"source": parsed.text, "trust": trust},
        subject=f"model {Path(parsed.path).name or source}",
        progress=progress,
        read=schema_reader(_TimedSample),
        readable=parsed.files,
    )
    return float(result["seconds"])
