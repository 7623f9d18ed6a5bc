"""What the planner answers: a verified plan, a proof that there is none, or neither in time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torchsplit_core.values.plan.explanation import PlanExplanation
from torchsplit_core.values.plan.front import PlannedFront
from torchsplit_core.values.profile import Basis
from torchsplit_core.values.status import SolveStatus


@dataclass(frozen=True, slots=True)
class Tenant:
    """One instance of a stage on a slice, with its share of the slice's time.

    `throughput_rps` is its share of its point's; `low_rps` and `high_rps` are the interval of the point itself.
    """

    model: str
    variant: str
    stage: str
    share: float
    batch_size: int
    processes: int
    throughput_rps: float
    memory_gib: float | None
    basis: Basis | None = None
    low_rps: float | None = None
    high_rps: float | None = None


@dataclass(frozen=True, slots=True)
class PlannedSlice:
    """A MIG instance at its first memory slot, and who uses it."""

    profile: str
    start: int
    tenants: tuple[Tenant, ...] = ()


@dataclass(frozen=True, slots=True)
class PlannedGpu:
    """A GPU and its slices; a GPU not used has none."""

    id: str
    type: str
    used: bool
    slices: tuple[PlannedSlice, ...] = ()


@dataclass(frozen=True, slots=True)
class ResponsePercentiles:
    """Milliseconds from arrival to answer, simulated, queues included; means over replications."""

    p50: float
    p95: float
    p99: float


ResponseBinding = Literal["rate", "fill", "service"]
"""What most of a response at the limited percentile is: waiting, the rest of its batch, or the model itself."""


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """What a model gets. `variant`, `latency_ms` and `basis` are None where it has no tenant.

    `low_rps` and `high_rps`: its throughput with every instance at the lower (upper) end of its interval, one
    without an interval as it is. `basis` is the weakest of its tenants'. `bytes_across_cuts_per_s` are the bytes
    that cross its cuts at that throughput. All None in plans of a version that did not reckon them.
    `response_ms`, `response_bound_by` and `max_wait_ms` (how long a batch waits for requests before it starts) are
    of models with a limit of their response time, else None. `front_rps` is what the front lets through of the
    throughput when all models get the same multiple of their demands; None where the request does not tell its costs.
    """

    name: str
    variant: str | None
    throughput_rps: float
    normalised: float
    latency_ms: float | None
    low_rps: float | None = None
    high_rps: float | None = None
    basis: Basis | None = None
    bytes_across_cuts_per_s: float | None = None
    response_ms: ResponsePercentiles | None = None
    max_wait_ms: float | None = None
    response_bound_by: ResponseBinding | None = None
    front_rps: float | None = None


@dataclass(frozen=True, slots=True)
class RoutedBytes:
    """What routed co-locations send between GPUs, bytes/s, whatever the routing.

    No plan of this one's levels sends fewer than `bound` (None: nothing is proven, or the objective pays for them);
    `gap` is (bytes_per_s − bound) / bytes_per_s.
    """

    bytes_per_s: float
    bound: float | None = None
    gap: float | None = None


@dataclass(frozen=True, slots=True)
class ObjectiveValue:
    """The value reached, a proven bound and the gap at the first level that is not proven.

    `routed` is None where the request has no routed co-location.
    `levels` has the value of every level in their order where models have different tiers: `value` is then the least
    r, which is the first of the last levels. Empty elsewhere: the levels are `sorted_normalised` less the penalty.
    """

    kind: str
    value: float | None
    sorted_normalised: tuple[float, ...] = ()
    bound: float | None = None
    gap: float | None = None
    proven_levels: int = 0
    routed: RoutedBytes | None = None
    levels: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Demand:
    """A demand at fault: of one `model`, or of several `models` (a hard co-location)."""

    demand: Literal["min_throughput_rps", "max_latency_ms", "max_response_ms", "colocation"]
    model: str | None = None
    models: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Conflict:
    """A minimal set of demands that cannot be met together on this fleet."""

    demands: tuple[Demand, ...]
    message: str


@dataclass(frozen=True, slots=True)
class Relaxation:
    """One numeric change of the least relaxation (written "from" and "to" in the file)."""

    model: str
    demand: Literal["min_throughput_rps", "max_latency_ms"]
    old: float
    new: float


@dataclass(frozen=True, slots=True)
class PlanStatistics:
    """Seconds spent, and with which solver. Differs from run to run."""

    build_s: float
    solve_s: float
    verify_s: float
    solver: str
    details: Mapping[str, str | int | float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlanOutcome:
    """The answer to the request with this hash. `warnings` say what was left out and why.

    `explanation` is there where it was asked for, and only of a plan. `cost_per_hour` is that of the GPUs in use, None
    where one of them has no price; `cost_per_million_requests` is of those served: of each model its throughput, up to
    its demand.
    """

    request_sha256: str
    status: SolveStatus
    objective: ObjectiveValue
    gpus: tuple[PlannedGpu, ...]
    models: tuple[PlannedModel, ...]
    statistics: PlanStatistics
    conflicts: tuple[Conflict, ...] = ()
    least_relaxation: tuple[Relaxation, ...] | None = None
    warnings: tuple[str, ...] = ()
    explanation: PlanExplanation | None = None
    front: PlannedFront | None = None
    cost_per_hour: float | None = None
    cost_per_million_requests: float | None = None
