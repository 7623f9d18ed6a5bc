"""What the planner is asked: fleet, models, demands, objective."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from torchsplit_core.values.profile import Basis


@dataclass(frozen=True, slots=True)
class FleetEntry:
    """`count` equal GPUs, or one with an id of its own.

    `layouts`: None for every legal layout of the plain profiles, or the offered layouts as
    tuples of profile names. `cost` is per GPU and counts only for objective min_gpus.
    """

    type: str
    id: str | None = None
    count: int = 1
    layouts: tuple[tuple[str, ...], ...] | None = None
    cost: float = 1.0


@dataclass(frozen=True, slots=True)
class Point:
    """One way to run one instance of a stage on one slice."""

    gpu_type: str
    profile: str
    batch_size: int
    throughput_rps: float
    latency_ms: float
    processes: int = 1
    memory_gib: float | None = None
    basis: Basis = "measured"


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of a model (the whole of it where the variant is not cut)."""

    name: str
    points: tuple[Point, ...] = ()


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to cut a model. `cut_bytes[i]` crosses from stage i to stage i + 1 per batch.

    No plan uses one that is not `allowed`: it only stays in the request.
    """

    name: str
    stages: tuple[Stage, ...]
    cut_bytes: tuple[float, ...] = ()
    allowed: bool = True


@dataclass(frozen=True, slots=True)
class PlanModel:
    """A model with its demands. `normalised` throughput is T / (weight · demand_rps)."""

    name: str
    variants: tuple[Variant, ...]
    weight: float = 1.0
    demand_rps: float = 1.0
    min_throughput_rps: float | None = None
    max_latency_ms: float | None = None
    cap_at_demand: bool = False

    @property
    def allowed_variants(self) -> tuple[tuple[int, Variant], ...]:
        """The variants that a plan may use, each with its index among all of them."""
        return tuple((index, variant) for index, variant in enumerate(self.variants) if variant.allowed)


@dataclass(frozen=True, slots=True)
class Colocation:
    """hard: on every GPU either all of `models` have a slice or none. soft: separations cost bytes."""

    models: tuple[str, ...]
    mode: Literal["hard", "soft"] = "hard"
    bytes_per_request: float = 0.0


ObjectiveKind = Literal["leximin", "max_min", "weighted_sum", "min_gpus"]
"""What the best plan is; the planner tells them apart in its objective.py."""


@dataclass(frozen=True, slots=True)
class Objective:
    """`memory_violation_penalty` γ None: memory is a limit. `separation_weight` 0: separations break ties."""

    kind: ObjectiveKind = "leximin"
    memory_violation_penalty: float | None = None
    separation_weight: float = 0.0


@dataclass(frozen=True, slots=True)
class SolverOptions:
    """Seconds the search may take."""

    time_limit_s: float = 60.0


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """The whole question. `link_gb_per_s` None: transfers between stages take no time."""

    gpus: tuple[FleetEntry, ...]
    models: tuple[PlanModel, ...]
    colocations: tuple[Colocation, ...] = ()
    objective: Objective = field(default_factory=Objective)
    sharing: Literal["exclusive", "fractional"] = "exclusive"
    link_gb_per_s: float | None = None
    max_tenants_per_slice: int | None = None
    solver: SolverOptions = field(default_factory=SolverOptions)
