"""What the planner is asked: fleet, models, demands, objective."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from torchsplit_core.values.fields import (
    Added,
    Amount,
    Count,
    Divisor,
    FileField,
    Length,
    Name,
    NodeId,
    NonEmpty,
    PercentileRank,
    PositiveShare,
    Text,
    Tier,
    Whole,
)
from torchsplit_core.values.hardware import WHOLE_GPU
from torchsplit_core.values.plan.demand_over_day import DemandWindow, WindowRate
from torchsplit_core.values.plan.front import FrontCosts
from torchsplit_core.values.plan.host_state import HostState
from torchsplit_core.values.plan.llm import LlmModel, PlannedEngine
from torchsplit_core.values.plan.prices import PriceDate
from torchsplit_core.values.profile import Basis, Pace
from torchsplit_core.values.simulation.request import Arrivals, PoissonArrivals

MigMode = bool | Literal["either"]
"""Whether a GPU is cut by MIG; "either": the plan decides."""


@dataclass(frozen=True, slots=True)
class FleetEntry:
    """`count` equal GPUs, or one with an id of its own.

    `layouts`: the allowed ones as tuples of profile names; None: every legal layout of the plain profiles. `cost` is
    the price of one GPU for an hour in any currency, used by the objective min_gpus alone, which takes None for 1;
    `cost_date` is the date of a price from a table, None: the price is the request's own.
    GPUs with the same `node` share that host's link; None: all of them one node. `mig` False leaves a GPU whole,
    "either" lets the plan decide; types without MIG ignore it.
    """

    type: Annotated[Name, FileField(after="id")]
    id: Name | None = None
    count: Count = 1
    layouts: tuple[tuple[Name, ...], ...] | None = None
    cost: Added[Amount | None] = None
    node: Added[Name | None] = None
    mig: Added[MigMode] = True
    cost_date: Added[PriceDate | None] = None


@dataclass(frozen=True, slots=True)
class Point:
    """One way to run one instance of a stage on one slice; `profile` WHOLE_GPU: on a GPU that is left whole.

    `memory_gib` None: unknown, so it shares its slice with nobody. `low_rps` and `high_rps` are the ends of
    the 90 % interval of the throughput, None where they are unknown. `pace` None: the device keeps its speed.
    """

    gpu_type: Name
    profile: Annotated[Name, FileField(null=WHOLE_GPU)]
    batch_size: Count
    throughput_rps: Amount
    latency_ms: Amount
    processes: Annotated[Count, FileField(after="batch_size")] = 1
    memory_gib: Amount | None = None
    basis: Basis = "measured"
    low_rps: Added[Amount | None] = None
    high_rps: Added[Amount | None] = None
    pace: Added[Pace | None] = None

    @property
    def tensor_parallel(self) -> int:
        """GPUs that one instance takes: more than 1 only of an LLM's engine on several GPUs without MIG."""
        return 1


@dataclass(frozen=True, slots=True)
class EnginePoint(Point):
    """An engine of an LLM as a point, made of its sizes or measured; files do not have it.

    `profile` WHOLE_GPU: on `engine.tensor_parallel` GPUs without MIG, which is one instance. Its batch is max_num_seqs.
    ttft_ms, tpot_ms: the limited percentile at this throughput, None where not known. `binds`: why not more
    ("TTFT", "TPOT", "KV", "rate"; empty where measured).
    """

    engine: PlannedEngine | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    binds: str = ""

    @property
    def tensor_parallel(self) -> int:
        return 1 if self.engine is None else self.engine.tensor_parallel


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of a model (the whole of it where the variant is not cut). `nodes`: of its graph, empty where unknown."""

    name: Name
    points: tuple[Point, ...] = ()
    nodes: Added[tuple[NodeId, ...]] = ()


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to cut a model. From stage i to stage i + 1 a batch carries `cut_bytes[i]`, whatever its size,
    and `cut_bytes_per_request[i]` for each of its requests (none where that is empty).

    No plan uses one that is not `allowed`: it only stays in the request.
    """

    name: Name
    stages: Annotated[NonEmpty[tuple[Stage, ...]], FileField(after="allowed")]
    cut_bytes: tuple[Amount, ...] = ()
    cut_bytes_per_request: Added[tuple[Amount, ...]] = ()
    allowed: Added[bool] = True


@dataclass(frozen=True, slots=True)
class PlanModel:
    """A model with its demands. `normalised` throughput is T / (weight · demand_rps).

    `source` is what was profiled, None if unknown; `stages[].nodes` are of its graph. `max_response_ms` limits
    `response_percentile` of its clients' waiting time, queues included, for requests that arrive by `arrivals` (None:
    Poisson at `demand_rps`). `bytes_per_request`: of a request's inputs and outputs, which pass the front; None:
    unknown. With leximin and max_min, models of a higher `tier` are served up to their demand before those of a lower
    one get more. `demand_windows`: its demand by time of day. `demand_samples`: requests/s at moments of a history, the
    k-th entries of all models at the same one.

    `llm`: it is an LLM, which files give in place of `variants`; those are then made of it, one of its engines by
    point (`engine_plans.engine_points`), and empty before.
    """

    name: Name
    variants: Annotated[NonEmpty[tuple[Variant, ...]], FileField(after="tier", added=True)] = ()
    weight: Divisor = 1.0
    demand_rps: Divisor = 1.0
    min_throughput_rps: Amount | None = None
    max_latency_ms: Divisor | None = None
    cap_at_demand: bool = False
    source: Added[Text | None] = None
    max_response_ms: Added[Divisor | None] = None
    response_percentile: Added[PercentileRank] = 95.0
    arrivals: Added[Arrivals | None] = None
    bytes_per_request: Added[Amount | None] = None
    tier: Added[Tier] = 0
    demand_windows: Added[tuple[DemandWindow, ...]] = ()
    demand_samples: Added[tuple[Amount, ...]] = ()
    llm: Added[LlmModel | None] = None

    @property
    def left_out_of_files(self) -> tuple[str, ...]:
        """The fields that follow from others: the variants of an LLM."""
        return ("variants",) if self.llm is not None else ()

    @property
    def expected_arrivals(self) -> Arrivals:
        """`arrivals`, else Poisson at its demand."""
        arrivals = self.arrivals if self.llm is None else self.llm.arrivals
        return arrivals or PoissonArrivals(self.demand_rps)

    @property
    def response_limit_ms(self) -> float | None:
        """What its clients wait at most: max_response_ms, else max_latency_ms; None without either."""
        return self.max_latency_ms if self.max_response_ms is None else self.max_response_ms

    @property
    def allowed_variants(self) -> tuple[tuple[int, Variant], ...]:
        """The variants that a plan may use, each with its index among all of them."""
        return tuple((index, variant) for index, variant in enumerate(self.variants) if variant.allowed)

    @property
    def points(self) -> tuple[Point, ...]:
        """Those of all its stages."""
        return tuple(point for variant in self.variants for stage in variant.stages for point in stage.points)

    @property
    def allowed_points(self) -> tuple[Point, ...]:
        """Those of the variants that a plan may use."""
        return tuple(
            point
            for _, variant in self.allowed_variants
            for stage in variant.stages
            for point in stage.points
        )


ColocationMode = Literal["hard", "soft", "routed"]


@dataclass(frozen=True, slots=True)
class Colocation:
    """hard: on every GPU either all of `models` have a slice or none. soft: separations cost bytes. routed: bytes/s
    between GPUs from each model of the list to the next cost.

    `models` are names of models, or of stages as MODEL/VARIANT.STAGE (MODEL/STAGE where no other variant has one
    of that name). Between two neighbouring stages 0 bytes stand for what their cut carries.
    """

    models: Annotated[tuple[Name, ...], Length(min_length=2)]
    mode: ColocationMode = "hard"
    bytes_per_request: Amount = 0.0


ObjectiveKind = Literal["leximin", "max_min", "weighted_sum", "min_gpus", "attainment"]
"""What the best plan is; see `planning.request.objective`."""


@dataclass(frozen=True, slots=True)
class Objective:
    """`memory_violation_penalty` γ None: memory is a limit. `separation_weight` 0: separations break ties.

    `survives` 1: every minimum still holds with the instances of any one GPU gone. `max_touched_gpus`: at most so many
    GPUs have other instances or tenants than in the request's `current`; None: any number. `attainment`, of a kind that
    minimises cost: the least part of the models' `demand_samples` that is held, in place of their minima.
    """

    kind: ObjectiveKind = "leximin"
    memory_violation_penalty: Amount | None = None
    separation_weight: Amount = 0.0
    survives: Added[Literal[0, 1]] = 0
    max_touched_gpus: Added[Whole | None] = None
    attainment: Added[PositiveShare | None] = None


@dataclass(frozen=True, slots=True)
class SolverOptions:
    """Seconds the search may take, and whether it plans with throughputs as they are or their lower ends."""

    time_limit_s: Divisor = 60.0
    plan_at: Added[Literal["nominal", "low"]] = "nominal"


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """The whole question. `link_gb_per_s` None: transfers between stages take no time.

    `network_gb_per_s` applies, if slower, to a variant with instances on more than one node. Both in 10^9 bytes a
    second. `front`: costs of the front if the plan is served from one host; None: ignored. `current`: what runs on the
    fleet now, by the ids of its GPUs; those it does not name are empty. `seed`: of the draws of LLMs' simulations.
    `plan_demand_at`: which rate of a demand window that has two is its demand in plans over the day.
    """

    gpus: tuple[FleetEntry, ...]
    models: tuple[PlanModel, ...]
    colocations: tuple[Colocation, ...] = ()
    objective: Objective = field(default_factory=Objective)
    sharing: Literal["exclusive", "fractional"] = "exclusive"
    link_gb_per_s: Divisor | None = None
    network_gb_per_s: Added[Divisor | None] = None
    max_tenants_per_slice: Count | None = None
    solver: SolverOptions = field(default_factory=SolverOptions)
    front: Added[FrontCosts | None] = None
    current: Added[HostState | None] = None
    seed: Added[Whole] = 0
    plan_demand_at: Added[WindowRate] = "p95"
