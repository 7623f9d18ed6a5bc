"""A run's folder as values: state, steps, events, ranks, checkpoints."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal

from torchsplit_core.checkpoints.trained_run import Validation
from torchsplit_core.hardware import DcgmFigures, GpuState
from torchsplit_core.training.monitor.launch_record import LaunchRecord

State = Literal["starting", "running", "recovering", "finished", "stopped", "broken off"]
"""`broken off`: nothing writes there any more, and the last that it said was no end."""


@dataclass(slots=True)
class Steps:
    """The lines of the steps, by column: a run may have millions."""

    step: array[int] = field(default_factory=lambda: array("q"))
    loss: array[float] = field(default_factory=lambda: array("d"))
    samples: array[int] = field(default_factory=lambda: array("q"))
    step_s: array[float] = field(default_factory=lambda: array("d"))
    world_size: array[int] = field(default_factory=lambda: array("q"))

    def __len__(self) -> int:
        return len(self.step)

    def add(self, line: Mapping[str, Any]) -> None:
        """A line of `metrics.jsonl`. Raises KeyError, TypeError, ValueError or OverflowError for one that is none."""
        row = [kind(line[name]) for name, kind in COLUMNS.items()]
        for name, value in zip(COLUMNS, row, strict=True):
            getattr(self, name).append(value)


COLUMNS: Mapping[str, type] = {
    "step": int, "loss": float, "samples": int, "step_s": float, "world_size": int,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Event:
    """What happened: to a rank, or (None) to the run."""

    time: datetime
    kind: str
    rank: int | None
    node: str
    words: str


@dataclass(frozen=True, slots=True)
class Rank:
    """What a rank said last of itself, and when. `state` is in words.

    `parts_s`: seconds of a step by what they were for, None where they are not known; `peak_bytes`: the most memory,
    of its GPU's tensors, or of the process on a CPU. `blocks_s`: of a pipeline its blocks, with the seconds of a
    micro-batch in each, None where they are not known.
    """

    rank: int
    node: str
    pid: int
    device: str
    step: int
    reported_at: datetime
    state: str
    peak_bytes: int
    parts_s: Mapping[str, float] | None
    communication_share: float | None
    blocks_s: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeGpu:
    """A GPU of a node, as its driver and DCGM told of it last, and when."""

    node: str
    index: int
    name: str
    sampled_at: datetime
    state: GpuState
    dcgm: DcgmFigures


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint: its step, its bytes on disk, when it was completed. `newest`: LATEST names it."""

    step: int
    bytes: int
    time: datetime
    newest: bool


@dataclass(frozen=True, slots=True)
class RunView:
    """A run as its folder has it now; its steps grow with the next look.

    `facts`: what run.json says, empty before the first start.
    `validation`: the last measurement on held-out samples, None where there is none of a step that is still there.
    `words`: how it ended, empty while it goes on. `alive`: a process writes there.
    """

    state: State
    alive: bool
    words: str
    facts: Mapping[str, Any]
    launch: LaunchRecord | None
    steps: Steps
    events: tuple[Event, ...]
    ranks: tuple[Rank, ...]
    checkpoints: tuple[Checkpoint, ...]
    gpus: tuple[NodeGpu, ...]
    validation: Validation | None = None

    def starting(self, steps: int | None = None) -> RunView:
        """The run while its processes start, to go on to the step `steps` (None: not said yet).

        Until they have said so themselves, the folder tells of the start before.
        """
        facts = {name: value for name, value in self.facts.items() if name != "steps"}
        return replace(
            self,
            state="starting",
            words="",
            facts=facts | ({"steps": steps} if steps else {}),
            ranks=tuple(replace(rank, state="starting") for rank in self.ranks),
        )

    @property
    def last_step(self) -> int:
        """The last step that is done, 0 before the first."""
        return self.steps.step[-1] if len(self.steps) else 0

    @property
    def target_steps(self) -> int | None:
        """The step it ends with; None while it starts."""
        steps = self.facts.get("steps")
        return steps if isinstance(steps, int) and steps > 0 else None
