"""The values of a measurement: its settings, the points it stores, and the results of its children so far."""

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
"""Time limit of a point: this long, or this many of its time budgets if that is more, unless given."""
COMPILE_S = 900.0
"""Extra time for torch.compile at every batch size: minutes for a large model on a few cores."""
POINT_BUDGET_S = 2.0
"""The default time of a point."""
REPEATS = 5
"""Blocks of a point's runs, whose means show disturbances that adjacent runs share."""


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """One stored result of a measurement: of which model, at which batch size, what.

    `content` is JSON as `child` made it; `stored_at` is when it was stored (Unix seconds), None for a new one.
    """

    architecture_hash: str
    kind: PointKind
    batch_size: int
    content: Mapping[str, Any]
    stored_at: float | None = field(default=None, compare=False)

    @classmethod
    def from_message(cls, architecture_hash: str, kind: str, content: Mapping[str, Any]) -> MeasuredPoint:
        """A point from a message of the child. Raises InternalFault for another kind."""
        known: dict[str, PointKind] = {"batch": "batch", "nodes": "nodes", "failure": "failure"}
        if kind not in known:
            raise InternalFault(f"a measurement has no points of kind {kind}")
        return cls(architecture_hash, known[kind], int(content["batch_size"]), content)


@dataclass(frozen=True, slots=True)
class MeasurementSettings:
    """How to measure; points measured with different settings are different points.

    `point_budget_s`: seconds a batch size (at least three runs in any case); `point_limit_s`: after which a point
    counts as hung. `torch_trace`: a folder for one torch.profiler trace a batch size. `dtype`: to which weights and
    floating-point inputs are cast ("": the model's own). `compile_mode`: of torch.compile ("": eager). The runs are
    taken in `repeats` blocks; `seed` is that of random inputs and of every run. With `host_copies` a timed run also
    copies the inputs from pinned host memory and the outputs back. `processes`: numbers of concurrent processes to
    measure; a single one always is. `sequence_length`: tokens of the example inputs, None for the client's default.
    """

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
        """Seconds after which a point counts as hung."""
        default = max(LEAST_POINT_LIMIT_S, BUDGETS_PER_POINT * self.point_budget_s)
        return self.point_limit_s or default + (COMPILE_S if self.compile_mode else 0.0)


@dataclass(slots=True)
class MeasurementLog:
    """The results of the children of one measurement so far."""

    graph: TorchGraph | None
    points: list[MeasuredPoint]
    environment: dict[str, Any] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)
    current_point: tuple[str, int] | None = None
    share: float = 0.0
    batch_sizes: tuple[int, ...] = ()
    """Those of the model's client, if none were given."""
    taken_over: set[int] = field(default_factory=set)
    """Batch sizes whose figures were measured before."""
