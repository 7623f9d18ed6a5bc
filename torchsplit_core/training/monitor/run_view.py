"""A run's folder as values: state, steps, events, ranks, checkpoints."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal

from torchsplit_core.checkpoints.trained_run import Validation
from torchsplit_core.hardware import DcgmFigures, GpuState
from torchsplit_core.training.communication.record import ExchangeRecord
from torchsplit_core.training.monitor.launch_record import LaunchRecord

State = Literal["starting", "running", "recovering", "finished", "stopped", "broken off"]
"""`broken off`: nothing writes to the folder any more, and its last event is no end."""


@dataclass(slots=True)
class Steps:
    """The step lines as columns, since a run may have millions."""

    step: array[int] = field(default_factory=lambda: array("q"))
    loss: array[float] = field(default_factory=lambda: array("d"))
    samples: array[int] = field(default_factory=lambda: array("q"))
    step_s: array[float] = field(default_factory=lambda: array("d"))
    world_size: array[int] = field(default_factory=lambda: array("q"))
    validations: list[tuple[int, Mapping[str, float]]] = field(default_factory=list)
    """Steps after which the run was measured on held-out samples, with the figures."""

    def __len__(self) -> int:
        return len(self.step)

    def add(self, line: Mapping[str, Any]) -> None:
        """Add a line of `metrics.jsonl`. Raises KeyError, TypeError, ValueError or OverflowError for an invalid one."""
        row = [kind(line[name]) for name, kind in COLUMNS.items()]
        for name, value in zip(COLUMNS, row, strict=True):
            getattr(self, name).append(value)
        if "validation" in line:
            figures = {str(name): float(value) for name, value in dict(line["validation"]).items()}
            self.validations.append((self.step[-1], figures))


COLUMNS: Mapping[str, type] = {
    "step": int, "loss": float, "samples": int, "step_s": float, "world_size": int,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Event:
    """What happened to a rank, or to the run (`rank` is None)."""

    time: datetime
    kind: str
    rank: int | None
    node: str
    words: str


@dataclass(frozen=True, slots=True)
class Rank:
    """The last status that a rank published, and when. `state` is in words.

    `parts_s`: seconds of a step by phase, None if they are not known; `peak_bytes`: peak memory of its GPU's tensors,
    or of the process on a CPU. `blocks_s`: for a pipeline, the seconds of a micro-batch in each of its blocks, None if
    they are not known. `communication_s`: seconds of a step by kind of communication, None if they are not known.
    `averaged_steps`: over how many steps up to `step` the seconds are means, None if that is not known.
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
    communication_s: Mapping[str, float] | None = None
    averaged_steps: int | None = None


@dataclass(frozen=True, slots=True)
class NodeGpu:
    """A GPU of a node, with the last figures of its driver and DCGM, and when they were sampled."""

    node: str
    index: int
    name: str
    sampled_at: datetime
    state: GpuState
    dcgm: DcgmFigures


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint: its step, its bytes on disk, when it was completed.

    `newest`: LATEST names it; `best_by`: the metric by which it is the best, empty if it is not.
    """

    step: int
    bytes: int
    time: datetime
    newest: bool
    best_by: str = ""


@dataclass(frozen=True, slots=True)
class RunView:
    """A run as its folder shows it now; its steps grow with the next read.

    `facts`: the contents of run.json, empty before the first attempt. `validation`: the last measurement on held-out
    samples, None if there is none of a step that still exists. `exchange`: how gradients are exchanged, None if nothing
    was chosen. `words`: how it ended, empty while it goes on. `alive`:
    a process writes to the folder.
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
    exchange: ExchangeRecord | None = None

    def starting(self, steps: int | None = None) -> RunView:
        """The run while its processes start, to train to step `steps` (None: not known yet).

        Until they have reported themselves, the folder describes the last attempt.
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
        """The last completed step, 0 before the first."""
        return self.steps.step[-1] if len(self.steps) else 0

    @property
    def target_steps(self) -> int | None:
        """The step at which the run ends; None while it starts."""
        steps = self.facts.get("steps")
        return steps if isinstance(steps, int) and steps > 0 else None
