"""What an objective is, told once: everything but the check of a plan asks here what kind of one it serves.

An objective is one of three sorts. *levels*: the sorted r of the models, r being the requests/s that count
over weight · demand. *throughput*: the requests/s that count, each times the model's gain. *cost*: that of
the GPUs in use; models are then owed their minima alone. Penalties make any of them worse. An objective of
a sort that is here already is one more row of GOALS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torchsplit_core.values import Objective, ObjectiveKind, ObjectiveValue, PlanModel, PlanRequest

Trend = Literal["rises", "falls", "stays"]
"""How the best value goes as a figure of the request grows: it never falls, never rises, or neither."""


@dataclass(frozen=True, slots=True)
class Goal:
    """One objective. `minimised`: less is better; `every_level`: with the worst served done it goes on to the next.

    `gain` is what a request/s that counts is worth to a sum of throughputs. `by_weight`, `by_demand` and
    `by_uncapped_demand` tell how the best value goes with a model's weight and demand (without a cap at it).
    `label` names the value to people, `short` the objective.
    """

    sort: Literal["levels", "throughput", "cost"]
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
        """Whether its levels are the models', the worst served first."""
        return self.sort == "levels"

    @property
    def by_cost(self) -> bool:
        """Whether GPUs are paid for, so that equal ones of another cost differ and only minima are owed."""
        return self.sort == "cost"

    def better(self, one: Sequence[float], other: Sequence[float]) -> bool:
        """Whether the values of one plan, level by level, are better than those of another."""
        return tuple(one) < tuple(other) if self.minimised else tuple(one) > tuple(other)

    def held(self, bound: float, value: float) -> float:
        """The bound where the value keeps it, else the value: what is reached bounds itself, up to rounding."""
        return min(bound, value) if self.minimised else max(bound, value)

    def tightest(self, *bounds: float) -> float:
        """The bound that says most."""
        return max(bounds) if self.minimised else min(bounds)

    def gap(self, value: float, bound: float) -> float:
        """How far a value is from a bound, as the contract has it; 0 where it is beyond."""
        distance, base = (value - bound, value) if self.minimised else (bound - value, bound)
        return max(0.0, distance / abs(base)) if base else 0.0


_OF_LEVELS = Goal(
    "levels",
    "worst served",
    "the worst served alone",
    by_weight="falls",
    by_demand="falls",
    by_uncapped_demand="falls",
)

GOALS: Mapping[str, Goal] = {
    "leximin": replace(_OF_LEVELS, short="fair", every_level=True),
    "max_min": _OF_LEVELS,
    "weighted_sum": Goal(
        "throughput",
        "weighted throughput",
        "most requests",
        gain=lambda spec: spec.weight,
        by_weight="rises",
        by_demand="rises",
    ),
    "min_gpus": Goal("cost", "GPUs (or cost)", "fewest GPUs", minimised=True),
}
"""The objectives of the contract, in the order in which they are offered."""

_FIRST_LEVEL: dict[ObjectiveKind, ObjectiveKind] = {"leximin": "max_min"}


def goal_of(asked: PlanRequest | Objective | ObjectiveValue) -> Goal:
    """What the objective of a request, or of a plan, is. Raises KeyError for a kind that no contract has."""
    objective = asked.objective if isinstance(asked, PlanRequest) else asked
    return GOALS[objective.kind]


def without_minimum(request: PlanRequest) -> tuple[str, ...]:
    """The models that fewest GPUs owe nothing, so that it may leave them out; none under another objective."""
    if request.objective.kind not in GOALS or not goal_of(request).by_cost:
        return ()
    # What arrives must be served where its response time is limited.
    return tuple(
        model.name
        for model in request.models
        if not model.min_throughput_rps and model.max_response_ms is None
    )


def owes_nothing(request: PlanRequest) -> bool:
    """Whether no model is owed anything, so that the fewest GPUs is none."""
    free = without_minimum(request)
    return bool(free) and len(free) == len(request.models)


@dataclass(frozen=True, slots=True)
class Rung:
    """Models (by number) whose sorted r are levels, one after the other; an r counts up to `cap`."""

    models: tuple[int, ...]
    cap: float = float("inf")


def rungs(models: Sequence[PlanModel]) -> tuple[Rung, ...]:
    """What the levels of a fair objective are of: all models, and before that those of each tier up to their demand,
    the highest tier first, where tiers differ."""
    tiers = sorted({model.tier for model in models}, reverse=True)
    every = Rung(tuple(range(len(models))))
    if len(tiers) < 2:
        return (every,)
    first = (tuple(n for n in every.models if models[n].tier == tier) for tier in tiers)
    return (*(Rung(members, 1.0) for members in first), every)


def tiered(request: PlanRequest) -> bool:
    """Whether models have different tiers and the objective heeds them."""
    return goal_of(request).fair and len({model.tier for model in request.models}) > 1


def level_places(models: Sequence[PlanModel]) -> tuple[tuple[Rung, int], ...]:
    """For each level of leximin its rung, and its place there from 1 on."""
    return tuple((rung, k) for rung in rungs(models) for k in range(1, len(rung.models) + 1))


def level_count(request: PlanRequest) -> int:
    """How many levels the request's objective has."""
    return len(level_places(request.models)) if goal_of(request).every_level else 1


def turn(spec: PlanModel, r: float) -> tuple[int, float]:
    """Least first: whose turn it is to be served better, a model of this r; the highest tier below its demand."""
    return (1 if r >= 1 else -spec.tier, r)


def first_level(objective: Objective) -> Objective:
    """The objective with its first level alone."""
    return replace(objective, kind=_FIRST_LEVEL.get(objective.kind, objective.kind))


def for_the_worst(objective: Objective) -> Objective:
    """The objective with the worst served model's r in the place of its value; penalties stay."""
    return replace(objective, kind="max_min")


def pays_penalties(objective: Objective) -> bool:
    """Whether it pays for memory or separations, so that its value is not that of its sort alone."""
    return bool(objective.memory_violation_penalty) or objective.separation_weight > 0


def counted(spec: PlanModel, rate: float) -> float:
    """The requests/s that count."""
    return min(rate, spec.demand_rps) if spec.cap_at_demand else rate


def unit_rps(spec: PlanModel) -> float:
    """The requests/s at which r is 1: weight · demand."""
    return spec.weight * spec.demand_rps


def normalised(spec: PlanModel, rate: float) -> float:
    """r: the requests/s that count, over weight · demand."""
    return counted(spec, rate) / unit_rps(spec)


def ranked(request: PlanRequest, rates: Sequence[float], paid: float = 0.0) -> list[float]:
    """The value of every level of leximin, whatever the objective: r less the penalties paid, the worst served first,
    rung by rung; `rates` are requests/s in the order of the request."""
    r = [normalised(spec, rate) - paid for spec, rate in zip(request.models, rates, strict=True)]
    return [
        value for rung in rungs(request.models) for value in sorted(min(r[m], rung.cap) for m in rung.models)
    ]


def values(request: PlanRequest, rates: Sequence[float], cost: float, paid: float) -> list[float]:
    """The value of every level: of the models' requests/s, the cost of the GPUs in use, the penalties paid."""
    goal = goal_of(request)
    if goal.by_cost:
        return [cost + paid]
    if goal.fair:
        return ranked(request, rates, paid)[: level_count(request)]
    pairs = zip(request.models, rates, strict=True)
    return [sum(goal.gain(spec) * counted(spec, rate) for spec, rate in pairs) - paid]


def must_survive(request: PlanRequest) -> bool:
    """Whether losing a GPU matters: the request survives it, and some model has a minimum to keep."""
    return request.objective.survives > 0 and any(spec.min_throughput_rps for spec in request.models)


def first_bound(objective: ObjectiveValue) -> float | None:
    """What a plan proves of the first level of every plan; None where it proves nothing of it."""
    # A bound speaks of the first level that is not proven; a proven first level is its own bound.
    return reached(objective)[0] if objective.proven_levels else objective.bound


def value_reached(
    request: PlanRequest,
    levels: Sequence[float],
    normalised: Iterable[float],
    *,
    bound: float | None = None,
    proven: int = 0,
) -> ObjectiveValue:
    """What a plan with these `levels` and r by model reaches, with a proven `bound` of the first level that is not
    among the `proven` ones, at least what is reached there; where all are proven the value bounds itself."""
    goal = goal_of(request)
    several = goal.every_level and tiered(request)
    value = levels[-len(request.models)] if several else levels[0]
    gap = None
    if bound is not None and proven == len(levels):
        bound, gap = value, 0.0
    elif bound is not None:
        bound = goal.held(bound, levels[proven])
        gap = goal.gap(levels[proven], bound)
    shown = tuple(levels) if several else ()
    return ObjectiveValue(
        request.objective.kind, value, tuple(sorted(normalised)), bound, gap, proven, levels=shown
    )


def tier_levels(objective: ObjectiveValue) -> int:
    """How many of a plan's levels are those of tiers, which come before the ones of all models."""
    return max(0, len(objective.levels) - len(objective.sorted_normalised))


def reached(objective: ObjectiveValue) -> tuple[float, ...]:
    """The value of every level of a plan, read off its outcome; none where it is no plan, the first alone where the
    outcome does not say the others."""
    if objective.value is None:
        return ()
    if objective.levels:
        return objective.levels
    if not goal_of(objective).every_level or not objective.sorted_normalised:
        return (objective.value,)
    # A penalty is taken from every level alike.
    paid = objective.sorted_normalised[0] - objective.value
    return tuple(level - paid for level in objective.sorted_normalised)
