"""The words of a measurement: how to measure, the points it keeps, and what its children have told so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torchsplit_core.graph.torch_graph import TorchGraph
from torchsplit_core.values import InternalFault

PointKind = Literal["batch", "nodes", "failure"]
DType = Literal["", "float32", "bfloat16", "float16"]
CompileMode = Literal["", "default", "reduce-overhead", "max-autotune"]
LEAST_POINT_LIMIT_S, BUDGETS_PER_POINT = 120.0, 40.0
"""A point may take this long, or this many of its time budgets where that is more, unless the caller says."""
COMPILE_S = 900.0
"""What torch.compile may take beside, every batch size anew: minutes for a large model on a few cores."""
POINT_BUDGET_S = 2.0
"""The usual time of a point."""
REPEATS = 5
"""The runs of a point are taken in this many blocks, whose means show what runs next to each other hide."""


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """One finding of a measurement as it is kept between runs: of which model, at which batch size, what.

    `content` is JSON as `child` made it; `stored_at` is when it was kept (Unix seconds), None for a new one.
    """

    architecture_hash: str
    kind: PointKind
    batch_size: int
    content: Mapping[str, Any]
    stored_at: float | None = field(default=None, compare=False)

    @classmethod
    def from_message(cls, architecture_hash: str, kind: str, content: Mapping[str, Any]) -> MeasuredPoint:
        """A point of a part the child has told; InternalFault for another kind."""
        known: dict[str, PointKind] = {"batch": "batch", "nodes": "nodes", "failure": "failure"}
        if kind not in known:
            raise InternalFault(f"a measurement has no points of kind {kind}")
        return cls(architecture_hash, known[kind], int(content["batch_size"]), content)


@dataclass(frozen=True, slots=True)
class MeasurementSettings:
    """How to measure. `point_budget_s` seconds a batch size (at least three runs whatever they take);
    `point_limit_s` after which a point counts as hung; `torch_trace` a folder for one torch.profiler
    trace a batch size. `dtype` is the dtype that weights and floating inputs are cast to ("" for the model's own)
    and `compile_mode` the mode of torch.compile ("" for eager). The runs are taken in `repeats` blocks; `seed`
    is that of random inputs and of every run. With `host_copies` a timed run also copies the inputs from pinned
    memory of the host and the outputs back. All of these tell one point from another, and so do the processes:
    `processes` are the numbers of them to measure, at once on the device; one alone is always measured.
    `sequence_length` are the tokens of the example inputs, None for as many as the client gives by itself."""

    point_budget_s: float = POINT_BUDGET_S
    point_limit_s: float | None = None
    cuda_graphs: bool = False
    torch_trace: str | None = None
    dtype: DType = ""
    compile_mode: CompileMode = ""
    repeats: int = REPEATS
    seed: int = 0
    host_copies: bool = False
    processes: tuple[int, ...] = (1,)
    sequence_length: int | None = None

    @property
    def limit_s(self) -> float:
        """The time after which a point counts as hung."""
        default = max(LEAST_POINT_LIMIT_S, BUDGETS_PER_POINT * self.point_budget_s)
        return self.point_limit_s or default + (COMPILE_S if self.compile_mode else 0.0)


@dataclass(slots=True)
class MeasurementLog:
    """What the children of one measurement have told so far."""

    graph: TorchGraph | None
    points: list[MeasuredPoint]
    environment: dict[str, Any] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)
    current_point: tuple[str, int] | None = None
    share: float = 0.0
    batch_sizes: tuple[int, ...] = ()
    """Those that the model's client offers, where nobody gave any."""
    taken_over: set[int] = field(default_factory=set)
    """Batch sizes whose figures were measured before."""
