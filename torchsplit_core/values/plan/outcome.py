"""What the planner answers: a verified plan, a proof that there is none, or neither in time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal

from torchsplit_core.values.fields import Added, Facts, FileField, Finite, Name, NonNegative, Whole
from torchsplit_core.values.hardware import WHOLE_GPU
from torchsplit_core.values.plan.explanation import PlanExplanation
from torchsplit_core.values.plan.front import PlannedFront
from torchsplit_core.values.plan.llm import TokenFigure
from torchsplit_core.values.plan.request import ObjectiveKind
from torchsplit_core.values.plan.tenant import Tenant
from torchsplit_core.values.profile import Basis
from torchsplit_core.values.status import SolveStatus


@dataclass(frozen=True, slots=True)
class PlannedSlice:
    """A MIG instance at its first memory slot, and who uses it."""

    profile: Annotated[Name, FileField(null=WHOLE_GPU)]
    start: Whole
    tenants: tuple[Tenant, ...] = ()


@dataclass(frozen=True, slots=True)
class PlannedGpu:
    """A GPU and its slices; a GPU not used has none.

    `mig`: whether MIG is on, of a used GPU on which the plan decides it, else None. `group`: the name that it shares
    with the other GPUs of an engine on several.
    """

    id: Name
    type: Name
    used: bool
    slices: tuple[PlannedSlice, ...] = ()
    mig: Added[bool | None] = None
    group: Added[Name | None] = None


@dataclass(frozen=True, slots=True)
class ResponsePercentiles:
    """Milliseconds from arrival to answer, simulated, queues included; means over replications."""

    p50: NonNegative
    p95: NonNegative
    p99: NonNegative


def tenants_on(gpus: Iterable[PlannedGpu]) -> Iterator[tuple[PlannedGpu, PlannedSlice, Tenant]]:
    """Every tenant with its GPU and slice, in their order."""
    return ((gpu, item, tenant) for gpu in gpus for item in gpu.slices for tenant in item.tenants)


ResponseBinding = Literal["rate", "fill", "service"]
"""The largest part of a response at the limited percentile: queueing, filling its batch, or the model itself."""


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """What a model gets. `variant`, `latency_ms` and `basis` are None where it has no tenant.

    `low_rps` and `high_rps`: its throughput with every instance at the lower (upper) end of its interval, one
    without an interval as it is. `basis` is the weakest of its tenants'. `bytes_across_cuts_per_s` are the bytes
    that cross its cuts at that throughput. All None in plans of versions that did not compute them.
    `response_ms`, `response_bound_by` and `max_wait_ms` (how long a batch waits for requests before it starts) are
    of models with a limit of their response time, else None. `front_rps` is what the front lets through of the
    throughput when all models get the same multiple of their demands; None if the request has no front costs.
    `ttft_ms`, `tpot_ms`, `output_tokens_per_s`: of an LLM at the lesser of its demand and its throughput, else None.
    `samples_held`: in how many demand samples it has its own entry, whatever the others have; None if the objective
    does not read them.
    """

    name: Name
    variant: str | None
    throughput_rps: NonNegative
    normalised: NonNegative
    latency_ms: NonNegative | None
    low_rps: NonNegative | None = None
    high_rps: NonNegative | None = None
    basis: Basis | None = None
    bytes_across_cuts_per_s: NonNegative | None = None
    response_ms: Added[ResponsePercentiles | None] = None
    max_wait_ms: Added[NonNegative | None] = None
    response_bound_by: Added[ResponseBinding | None] = None
    front_rps: Added[NonNegative | None] = None
    ttft_ms: Added[TokenFigure | None] = None
    tpot_ms: Added[TokenFigure | None] = None
    output_tokens_per_s: Added[NonNegative | None] = None
    samples_held: Added[Whole | None] = None


@dataclass(frozen=True, slots=True)
class HeldSamples:
    """Of `count` samples of demand at one moment each, those `held`: every model has its entry of them.

    `required`: how many the objective asks for, None if as many as possible. `worst_model` has its entry in the fewest
    samples (None: each has all of its own). Of an infeasible outcome `held` is the most that a plan was seen to hold,
    and no plan holds more than `bound` (None there: not known, else not said).
    """

    count: Whole
    held: Whole
    share: NonNegative
    required: Whole | None = None
    worst_model: Name | None = None
    bound: Whole | None = None


@dataclass(frozen=True, slots=True)
class RoutedBytes:
    """Bytes/s that routed co-locations send between GPUs under any routing.

    No plan of this one's levels sends fewer than `bound` (None: nothing is proven, or the objective pays for them);
    `gap` is (bytes_per_s − bound) / bytes_per_s.
    """

    bytes_per_s: NonNegative
    bound: NonNegative | None = None
    gap: NonNegative | None = None


@dataclass(frozen=True, slots=True)
class ObjectiveValue:
    """The value reached, a proven bound and the gap at the first level that is not proven.

    `routed` is None where the request has no routed co-location.
    `levels` has the value of every level in their order where models have different tiers: `value` is then the least
    r, which is the first of the last levels. Empty elsewhere: the levels are `sorted_normalised` less the penalty.
    """

    kind: ObjectiveKind
    value: Finite | None
    sorted_normalised: tuple[NonNegative, ...] = ()
    bound: Finite | None = None
    gap: NonNegative | None = None
    proven_levels: Whole = 0
    routed: Added[RoutedBytes | None] = None
    levels: Added[tuple[Finite, ...]] = ()


@dataclass(frozen=True, slots=True)
class Demand:
    """A demand at fault: of one `model`, or of several `models` (a hard co-location, or the samples of all models)."""

    demand: Annotated[
        Literal[
            "min_throughput_rps",
            "max_latency_ms",
            "max_response_ms",
            "max_ttft_ms",
            "max_tpot_ms",
            "colocation",
            "attainment",
        ],
        FileField(after="models"),
    ]
    model: Added[str | None] = None
    models: Added[tuple[str, ...] | None] = None


@dataclass(frozen=True, slots=True)
class Conflict:
    """A minimal set of demands that cannot be met together on this fleet."""

    demands: tuple[Demand, ...]
    message: str


@dataclass(frozen=True, slots=True)
class Relaxation:
    """One numeric change of the least relaxation (written "from" and "to" in the file)."""

    model: Name
    demand: Literal["min_throughput_rps", "max_latency_ms"]
    old: Annotated[Finite, FileField(key="from")]
    new: Annotated[Finite, FileField(key="to")]


@dataclass(frozen=True, slots=True)
class PlanStatistics:
    """Seconds spent, and with which solver. Differs from run to run."""

    build_s: NonNegative
    solve_s: NonNegative
    verify_s: NonNegative
    solver: str
    details: Facts = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlanOutcome:
    """The answer to the request with this hash. `warnings` say what was left out and why.

    `explanation`: if requested, and only of a plan. `cost_per_hour` is that of the GPUs in use, None if one of them
    has no price; `cost_per_million_requests` is of those served: of each model its throughput, up to
    its demand. `touched_gpus` have other instances or tenants than in the request's `current`; None without one.
    `samples`: which of the demand samples are held, if the objective reads them.
    """

    request_sha256: str
    status: SolveStatus
    objective: ObjectiveValue
    gpus: tuple[PlannedGpu, ...]
    models: tuple[PlannedModel, ...]
    statistics: Annotated[PlanStatistics, FileField(after="warnings")]
    conflicts: tuple[Conflict, ...] = ()
    least_relaxation: tuple[Relaxation, ...] | None = None
    warnings: tuple[str, ...] = ()
    explanation: Added[PlanExplanation | None] = None
    front: Added[PlannedFront | None] = None
    cost_per_hour: Added[NonNegative | None] = None
    cost_per_million_requests: Added[NonNegative | None] = None
    touched_gpus: Added[Whole | None] = None
    samples: Added[HeldSamples | None] = None
