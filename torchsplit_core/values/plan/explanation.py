"""Why a plan is as it is: what binds each model, and the effect of changes and of other layouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from torchsplit_core.values.fields import Added, Count, FileField, Finite, Name, NonNegative, Whole

ChangeKind = Literal[
    "gpu",
    "layout",
    "min_throughput_rps",
    "max_latency_ms",
    "max_ttft_ms",
    "max_tpot_ms",
    "memory",
    "colocation",
    "max_tenants_per_slice",
    "cap_at_demand",
    "link",
    "engine",
]

LimitKind = Literal[
    "capacity",
    "min_throughput_rps",
    "max_latency_ms",
    "max_ttft_ms",
    "max_tpot_ms",
    "memory",
    "colocation",
    "max_tenants_per_slice",
    "cap_at_demand",
    "link",
    "no_admissible_point",
    "objective",
]

Effect = Literal["better", "same", "worse", "infeasible", "open", "not_examined"]


@dataclass(frozen=True, slots=True)
class ChangeEffect:
    """What one change of the request, alone, does to the objective (`old` and `new` are "from" and "to").

    `level` is the first level of the objective, from 1, at which the best plans before and after differ (if none
    does, the model's own level); objectives of one level have level 1. Values are of plans found, bounds are proven:
    the gain is at least value_after − bound_before and at most bound_after − value_before (min_gpus: the other way
    round). `effect` is proven unless it is open (time ran out) or not_examined; `proven`: the figures are exact too.
    `new` is None if a demand is dropped. `gpu_id` names a GPU of the changed kind: GPUs of one type may differ in
    allowed layouts or cost. Dropping `link` (GB/s) makes one model's transfers free; any other change of it applies
    to link and network of the whole request. `engine`: all engines of the LLM `model` on the places of one kind.
    """

    what: ChangeKind
    effect: Effect
    old: Annotated[Finite | None, FileField(key="from")] = None
    new: Annotated[Finite | None, FileField(key="to")] = None
    level: Count | None = None
    value_before: Finite | None = None
    bound_before: Finite | None = None
    value_after: Finite | None = None
    bound_after: Finite | None = None
    proven: bool = False
    model: str | None = None
    models: tuple[str, ...] = ()
    gpu_type: str | None = None
    gpu_id: str | None = None
    layout: tuple[Name, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelLimit:
    """One thing that may hold a model back. `binds` None: not proven either way; `change` is the evidence.

    A TTFT or TPOT limit binds where a tenth more of it makes the objective better.
    """

    kind: LimitKind
    binds: bool | None
    change: ChangeEffect | None = None


@dataclass(frozen=True, slots=True)
class ModelBinding:
    """The limits that a model has, and which of them bind. `level`: its rank from the worst served, from 1."""

    model: Name
    level: Count
    normalised: NonNegative
    limits: tuple[ModelLimit, ...]


@dataclass(frozen=True, slots=True)
class LayoutReason:
    """Why no GPU of the kind of `gpu_id` (same type, offers and cost) has this layout.

    no_use: no model can use any of its slices. dominated: `matching` pairs each of its useful slices with a slice of
    `dominated_by` at least as good for every model. tried: `trial` is the best plan with this layout on one GPU, or
    what bounds it. not_examined: no time was left.
    """

    gpu_type: Name
    gpu_id: Name
    layout: tuple[Name, ...]
    reason: Literal["no_use", "dominated", "tried", "not_examined"]
    dominated_by: tuple[Name, ...] = ()
    matching: tuple[tuple[Name, Name], ...] = ()
    trial: ChangeEffect | None = None


@dataclass(frozen=True, slots=True)
class EngineReason:
    """Why an LLM's engines are on places of this kind, or not.

    `profile` None: `tensor_parallel` GPUs without MIG. `engines` are in the plan; `rate_rps` is what one carries within
    the limits, with its interval, `binds` why not more. in_plan: some of the engines are there. no_engine: none fits or
    keeps the limits, `detail` says why. dominated: two engines on half of it, or the GPU without MIG, give as much.
    tried: `trial` is the best plan with all of the model's engines there, or what bounds it.
    """

    model: Name
    gpu_type: Name
    profile: Name | None
    tensor_parallel: Count
    reason: Literal["in_plan", "no_engine", "dominated", "tried", "not_examined"]
    engines: Whole = 0
    rate_rps: NonNegative | None = None
    low_rps: NonNegative | None = None
    high_rps: NonNegative | None = None
    binds: str = ""
    detail: str = ""
    trial: ChangeEffect | None = None

    @property
    def place(self) -> str:
        """Where its engine stands, or would."""
        if self.tensor_parallel > 1:
            return f"{self.tensor_parallel} × {self.gpu_type}"
        return f"{self.gpu_type} {self.profile or 'without MIG'}"


@dataclass(frozen=True, slots=True)
class PriceStep:
    """A step from the freest relaxation to the plan, judged at the objective's first level.

    relaxed: GPUs and slices in any fractions. pooled: whole layouts, shares pooled over equal
    slices. packed: those shares on concrete slices. shared, whole_slices: the best plan with sharing fractional,
    exclusive. plan: the plan itself. `value` is of a plan found (None if only bounded); `loss` is its distance from
    the relaxed bound as a share of that bound.
    """

    step: Literal["relaxed", "pooled", "packed", "shared", "whole_slices", "plan"]
    value: Finite | None
    bound: Finite | None
    loss: NonNegative | None
    proven: bool


@dataclass(frozen=True, slots=True)
class PlanExplanation:
    """`complete` is False where something was left open or not examined in the time given. `layouts` have () for a GPU
    without MIG.
    """

    models: tuple[ModelBinding, ...]
    changes: tuple[ChangeEffect, ...]
    layouts: tuple[LayoutReason, ...]
    steps: tuple[PriceStep, ...]
    seconds: NonNegative
    complete: bool
    engines: Added[tuple[EngineReason, ...]] = ()
