"""Cutting a costed graph into stages: request, candidate, outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from torchsplit_core.values.fields import (
    Added,
    Count,
    Divisor,
    Facts,
    FileField,
    Finite,
    NodeId,
    NonNegative,
    Range,
    Whole,
)
from torchsplit_core.values.limits import LARGEST_MAGNITUDE
from torchsplit_core.values.plan.request import SolverOptions
from torchsplit_core.values.profile import Basis
from torchsplit_core.values.status import SolveStatus

Objective = Literal["throughput", "latency"]


@dataclass(frozen=True, slots=True)
class PartitionNode:
    """A node with its costs. Nodes of one `group` stay on one device."""

    id: NodeId
    time_ms: Annotated[float, Range(ge=0, le=LARGEST_MAGNITUDE)]
    memory_bytes: Whole = 0
    output_bytes: Whole = 0
    group: str | None = None


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """`target` reads the value of `source`."""

    source: NodeId
    target: NodeId


@dataclass(frozen=True, slots=True)
class PartitionDevices:
    """Devices of equal memory. `memory_bytes` None: no limit. `link_gb_per_s` None: transfers take no time.

    `time_factors` has one figure a device, by which the time of every node is multiplied on it;
    None where all are as fast as the one that was profiled.
    """

    count: Count
    memory_bytes: Whole | None = None
    link_gb_per_s: Divisor | None = None
    time_factors: tuple[Divisor, ...] | None = None


@dataclass(frozen=True, slots=True)
class PartitionRequest:
    """At most `devices.count` stages of least maximal load, or of least `latency`.

    The latency is the time of one batch through all stages: their times, and the transfer of
    every value once into each stage that reads it and did not make it.
    """

    nodes: tuple[PartitionNode, ...]
    edges: tuple[GraphEdge, ...]
    devices: PartitionDevices
    contiguous: bool = True
    top_k: Count = 5
    solver: Annotated[SolverOptions, FileField(complete=True)] = field(default_factory=SolverOptions)
    objective: Objective = "throughput"


@dataclass(frozen=True, slots=True)
class PartitionCandidate:
    """Stages in pipeline order. `cut_bytes[i]` leaves stage i for later ones (one entry fewer than stages).

    `devices` names the device of every stage where their speeds differ; else it is empty.
    `weight_bytes` is what of each stage's peak its weights are; empty where no model stands behind the request.
    `times_ms` has the stages' times by batch size on the profiled device, transfers apart; they add up to
    the whole model's latency there. `batch_sensitivity` is how a stage's time grows with the batch from
    its smallest to its largest: 0 not at all, 1 in proportion; None where one batch size is known. Both
    are empty where no profile stands behind the request. A batch of b carries `cut_bytes_fixed[i]` +
    b · `cut_bytes_per_request[i]` across cut i, which at the traced batch are `cut_bytes[i]`; both are empty
    where no graph with sizes stands behind the request.
    """

    stages: tuple[tuple[str, ...], ...]
    loads_ms: tuple[NonNegative, ...]
    max_load_ms: NonNegative
    cut_bytes: tuple[Whole, ...]
    peak_memory_bytes: tuple[Whole, ...]
    basis: Basis = "estimated"
    latency_ms: NonNegative | None = None
    devices: tuple[Whole, ...] = ()
    times_ms: Mapping[Annotated[int, Range(ge=1)], tuple[NonNegative, ...]] = field(default_factory=dict)
    batch_sensitivity: tuple[Finite | None, ...] = ()
    weight_bytes: tuple[Whole, ...] = ()
    cut_bytes_fixed: Added[tuple[NonNegative, ...]] = ()
    cut_bytes_per_request: Added[tuple[NonNegative, ...]] = ()


@dataclass(frozen=True, slots=True)
class PartitionOutcome:
    """Candidates, best first, and a proven lower bound (of largest load, or of latency) for the best.

    `source` and `architecture_hash` name the model where the request came from one. `devices` and
    `objective` are those of the request: what the figures are about. `largest_batch` is the largest that parts of
    the model can run; None for any.
    """

    status: SolveStatus
    candidates: tuple[PartitionCandidate, ...]
    bound_ms: NonNegative | None
    gap: NonNegative | None
    message: str = ""
    source: str = ""
    architecture_hash: str = ""
    statistics: Facts = field(default_factory=dict)
    devices: PartitionDevices | None = None
    objective: Objective = "throughput"
    largest_batch: Added[Count | None] = None
