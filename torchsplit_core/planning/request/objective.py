"""The properties of objectives, for all of the planner but the verification, which has its own.

An objective is one of four kinds. *levels*: the sorted r of the models, r being the counted requests/s over weight ·
demand. *throughput*: the counted requests/s, each times the model's gain. *cost*: that of the GPUs in use, with each
model served its minimum. *share*: the part of the demand samples of which every model has its entry. Penalties worsen
any but the last. A further objective of one of these kinds is one more row of GOALS.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torchsplit_core.planning.tolerance import TOLERANCE
from torchsplit_core.values import Objective, ObjectiveKind, ObjectiveValue, PlanModel, PlanRequest

Trend = Literal["rises", "falls", "stays"]
"""How the best value changes as a figure of the request grows: it never falls, never rises, or neither."""


@dataclass(frozen=True, slots=True)
class Goal:
    """One objective. `minimised`: less is better; `every_level`: it continues after the worst served model.

    `gain`: the value of a counted request/s in a sum of throughputs. `by_weight`, `by_demand` and `by_uncapped_demand`:
    the trend of the best value in a model's weight and demand (without a cap at it). `label` is the display name of the
    value, `short` of the objective.
    """

    family: Literal["levels", "throughput", "cost", "share"]
    label: str
    short: str
    minimised: bool = False
    every_level: bool = False
    gain: Callable[[PlanModel], float] = lambda spec: 0.0
    by_weight: Trend = "stays"
    by_demand: Trend = "stays"
    by_uncapped_demand: Trend = "stays"

    @property
    def fair(self) -> bool:
        """Whether its levels are the models' r, the worst served first."""
        return self.family == "levels"

    @property
    def by_cost(self) -> bool:
        """Whether GPUs cost, so that equal ones of another cost differ and only minima count."""
        return self.family == "cost"

    @property
    def by_share(self) -> bool:
        """Whether its value is the share of the demand samples that are held."""
        return self.family == "share"

    def better(self, values_a: Sequence[float], values_b: Sequence[float]) -> bool:
        """Whether a plan with `values_a`, level by level, is better than one with `values_b`."""
        return tuple(values_a) < tuple(values_b) if self.minimised else tuple(values_a) > tuple(values_b)

    def clamp_bound(self, bound: float, value: float) -> float:
        """The bound, or the value if that is beyond it by rounding."""
        return min(bound, value) if self.minimised else max(bound, value)

    def tightest_bound(self, *bounds: float) -> float:
        """The tightest of the bounds."""
        return max(bounds) if self.minimised else min(bounds)

    def gap(self, value: float, bound: float) -> float:
        """Distance of a value from a bound, as in the contract; 0 if it is beyond."""
        distance, base = (value - bound, value) if self.minimised else (bound - value, bound)
        return max(0.0, distance / abs(base)) if base else 0.0


_MAX_MIN = Goal(
    "levels",
    "worst served",
    "the worst served alone",
    by_weight="falls",
    by_demand="falls",
    by_uncapped_demand="falls",
)

GOALS: Mapping[str, Goal] = {
    "leximin": replace(_MAX_MIN, short="fair", every_level=True),
    "max_min": _MAX_MIN,
    "weighted_sum": Goal(
        "throughput",
        "weighted throughput",
        "most requests",
        gain=lambda spec: spec.weight,
        by_weight="rises",
        by_demand="rises",
    ),
    "min_gpus": Goal("cost", "GPUs (or cost)", "fewest GPUs", minimised=True),
    "attainment": Goal("share", "share of samples held", "most samples held"),
}
"""The objectives of the contract, in display order."""

_LEAST_COST: ObjectiveKind = "min_gpus"

_FIRST_LEVEL: dict[ObjectiveKind, ObjectiveKind] = {"leximin": "max_min"}


COUNT_SLACK = 1e-9
"""Part of a sample by which a share of them may pass a whole number, since 0.95 · 20 is a little above 19."""


def goal_of(source: PlanRequest | Objective | ObjectiveValue) -> Goal:
    """The goal of a request or plan. Raises KeyError for an unknown kind."""
    objective = source.objective if isinstance(source, PlanRequest) else source
    return GOALS[objective.kind]


def models_without_minimum(request: PlanRequest) -> tuple[str, ...]:
    """The models that min_gpus may leave unserved; none under another objective, or if samples stand for the minima."""
    if request.objective.kind not in GOALS or not goal_of(request).by_cost:
        return ()
    if request.objective.attainment is not None:
        return ()
    # With a response limit everything that arrives must be served.
    return tuple(
        model.name
        for model in request.models
        if not model.min_throughput_rps and model.max_response_ms is None
    )


def has_no_minimum(request: PlanRequest) -> bool:
    """Whether no model has a minimum, so that min_gpus needs no GPU."""
    free = models_without_minimum(request)
    return bool(free) and len(free) == len(request.models)


@dataclass(frozen=True, slots=True)
class TierGroup:
    """Models (by index) whose sorted r are consecutive levels; an r counts up to `cap`."""

    models: tuple[int, ...]
    cap: float = float("inf")


def tier_groups(models: Sequence[PlanModel]) -> tuple[TierGroup, ...]:
    """The groups of a fair objective's levels: if tiers differ, first each tier up to its demand; then all models."""
    tiers = sorted({model.tier for model in models}, reverse=True)
    all_models = TierGroup(tuple(range(len(models))))
    if len(tiers) < 2:
        return (all_models,)
    by_tier = (tuple(n for n in all_models.models if models[n].tier == tier) for tier in tiers)
    return (*(TierGroup(members, 1.0) for members in by_tier), all_models)


def has_tiers(request: PlanRequest) -> bool:
    """Whether models have different tiers and the objective uses them."""
    return goal_of(request).fair and len({model.tier for model in request.models}) > 1


def level_positions(models: Sequence[PlanModel]) -> tuple[tuple[TierGroup, int], ...]:
    """For each level of leximin its tier group, and its position there from 1 on."""
    return tuple(
        (tier_group, k) for tier_group in tier_groups(models) for k in range(1, len(tier_group.models) + 1)
    )


def level_count(request: PlanRequest) -> int:
    """Number of levels of the request's objective."""
    return len(level_positions(request.models)) if goal_of(request).every_level else 1


def service_priority(spec: PlanModel, r: float) -> tuple[int, float]:
    """Sort key of the model to serve better next, smallest first: the highest tier below its demand, then r."""
    return (1 if r >= 1 else -spec.tier, r)


def first_level_objective(objective: Objective) -> Objective:
    """The objective with its first level only."""
    return replace(objective, kind=_FIRST_LEVEL.get(objective.kind, objective.kind))


def max_min_objective(objective: Objective) -> Objective:
    """The objective replaced by max_min; penalties stay."""
    return replace(objective, kind="max_min")


def least_cost_objective(objective: Objective) -> Objective:
    """The objective of the least cost with the same demands and penalties, for given minima."""
    return replace(objective, kind=_LEAST_COST, attainment=None)


def has_penalties(objective: Objective) -> bool:
    """Whether it pays for memory or separations, so that its value is not the plain one of its kind."""
    return bool(objective.memory_violation_penalty) or objective.separation_weight > 0


def capped_rate(spec: PlanModel, rate: float) -> float:
    """The counted requests/s."""
    return min(rate, spec.demand_rps) if spec.cap_at_demand else rate


def unit_rps(spec: PlanModel) -> float:
    """The requests/s at which r is 1: weight · demand."""
    return spec.weight * spec.demand_rps


def normalised(spec: PlanModel, rate: float) -> float:
    """r: the counted requests/s over weight · demand."""
    return capped_rate(spec, rate) / unit_rps(spec)


def leximin_values(request: PlanRequest, rates: Sequence[float], penalty: float = 0.0) -> list[float]:
    """The value of every level of leximin under any objective: ascending r minus penalties, by tier group.

    `rates` are requests/s in the order of the request.
    """
    r = [normalised(spec, rate) - penalty for spec, rate in zip(request.models, rates, strict=True)]
    return [
        value
        for tier_group in tier_groups(request.models)
        for value in sorted(min(r[m], tier_group.cap) for m in tier_group.models)
    ]


def objective_levels(
    request: PlanRequest, rates: Sequence[float], cost: float, penalty: float
) -> list[float]:
    """The value of every level, from the models' requests/s, the cost of the GPUs in use, and the penalties."""
    goal = goal_of(request)
    if goal.by_cost:
        return [cost + penalty]
    if goal.fair:
        return leximin_values(request, rates, penalty)[: level_count(request)]
    if goal.by_share:
        samples = [spec.demand_samples for spec in request.models]
        return [count_held(samples, rates) / max(1, len(samples[0]))]
    pairs = zip(request.models, rates, strict=True)
    return [sum(goal.gain(spec) * capped_rate(spec, rate) for spec, rate in pairs) - penalty]


def count_held(samples: Sequence[Sequence[float]], rates: Sequence[float]) -> int:
    """How many moments have no entry above its model's rate; `samples` are by model, then by moment."""
    least = [rate * (1 + TOLERANCE) for rate in rates]
    return sum(all(map(operator.le, entries, least)) for entries in zip(*samples, strict=True))


def reads_samples(request: PlanRequest) -> bool:
    """Whether the objective is about demand samples: the largest share of them, or a share at least cost."""
    return request.objective.attainment is not None or goal_of(request).by_share


def required_samples(request: PlanRequest) -> int | None:
    """How many samples must be held: ⌈attainment · n⌉; None if the objective asks for no share."""
    share = request.objective.attainment
    if share is None:
        return None
    return samples_of_share(share, sample_count(request))


def samples_of_share(share: float, count: int) -> int:
    """⌈share · count⌉."""
    return max(0, math.ceil(share * count - COUNT_SLACK))


def sample_count(request: PlanRequest) -> int:
    """How many samples there are; 0 without models or samples."""
    return len(request.models[0].demand_samples) if request.models else 0


def requires_resilience(request: PlanRequest) -> bool:
    """Whether the plan must survive the loss of a GPU and some model has a minimum."""
    return request.objective.survives > 0 and any(spec.min_throughput_rps for spec in request.models)


def first_bound(objective: ObjectiveValue) -> float | None:
    """A proven bound of the first level of every plan; None if the outcome has none."""
    # `bound` is of the first level that is not proven; a proven first level is its own bound.
    return reached_levels(objective)[0] if objective.proven_levels else objective.bound


def build_objective_value(
    request: PlanRequest,
    levels: Sequence[float],
    normalised: Iterable[float],
    *,
    bound: float | None = None,
    proven: int = 0,
) -> ObjectiveValue:
    """The values of a plan with these `levels` and r by model.

    `bound` is of the first level after the `proven` ones, at least the value reached there; if all are proven the value
    bounds itself.
    """
    goal = goal_of(request)
    several = goal.every_level and has_tiers(request)
    value = levels[-len(request.models)] if several else levels[0]
    gap = None
    if bound is not None and proven == len(levels):
        bound, gap = value, 0.0
    elif bound is not None:
        bound = goal.clamp_bound(bound, levels[proven])
        gap = goal.gap(levels[proven], bound)
    shown = tuple(levels) if several else ()
    return ObjectiveValue(
        request.objective.kind, value, tuple(sorted(normalised)), bound, gap, proven, levels=shown
    )


def tier_level_count(objective: ObjectiveValue) -> int:
    """How many of a plan's levels are those of tiers, which precede those of all models."""
    return max(0, len(objective.levels) - len(objective.sorted_normalised))


def reached_levels(objective: ObjectiveValue) -> tuple[float, ...]:
    """The value of every level of a plan; none without a plan, only the first if the outcome has no others."""
    if objective.value is None:
        return ()
    if objective.levels:
        return objective.levels
    if not goal_of(objective).every_level or not objective.sorted_normalised:
        return (objective.value,)
    # A penalty is subtracted from every level alike.
    penalty = objective.sorted_normalised[0] - objective.value
    return tuple(level - penalty for level in objective.sorted_normalised)
