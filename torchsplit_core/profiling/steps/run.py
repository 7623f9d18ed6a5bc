"""A training step of a source, measured on this processor or tracked on tensors without memory, in a child."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torchsplit_core.files.fields import Positive, Whole
from torchsplit_core.isolation import AnswerSchema, Limits, schema_reader, run_limited
from torchsplit_core.model_source import parse_source
from torchsplit_core.values import Progress, ignore_progress

Optimizer = Literal["adamw", "sgd"]
CHILD = "torchsplit_core.profiling.steps.child"


class _Tracked(AnswerSchema):
    peak_bytes: Whole


class _Measured(_Tracked):
    seconds: Positive


@dataclass(frozen=True, slots=True)
class MeasuredStep:
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
) -> MeasuredStep:
    """Train that many sequences a step on this processor, in single precision, in a confined child.

    The loss is the mean square of the outputs. Raises InputFault as `run_limited` does, whose `limits` hold.
    """
    parsed = parse_source(source, trust=trust)
    told = run_limited(
        f"{CHILD}:measure",
        {"source": parsed.text, "trust": trust, "batch": batch, "optimizer": optimizer, "steps": steps},
        limits=limits,
        subject=f"model {Path(parsed.path).name or source}",
        progress=progress,
        read=schema_reader(_Measured),
        readable=parsed.files,
    )
    return MeasuredStep(batch, float(told["seconds"]), int(told["peak_bytes"]))


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
    """Bytes at the peak of a device in a training step, by torch's memory trackers on tensors without memory.

    `shards` devices share the states (FSDPMemTracker on the fake backend; 1: MemTracker), `blocks` (modules) are
    what is gathered, and run again where `recompute`. Raises InputFault where torch cannot.
    """
    parsed = parse_source(source, trust=trust)
    told = run_limited(
        f"{CHILD}:track",
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
        read=schema_reader(_Tracked),
        readable=parsed.files,
    )
    return int(told["peak_bytes"])
