"""What a plan gains over another way to answer its request, as a ratio and in words."""

from __future__ import annotations

from dataclasses import dataclass

from torchsplit_core.planning.baselines.run import Baseline
from torchsplit_core.planning.outcome.levels import levels_of
from torchsplit_core.planning.request.objective import goal_of, tier_levels
from torchsplit_core.planning.tolerance import equal
from torchsplit_core.values import Objective, PlanOutcome

NEAR = 0.02
"""Ratios closer to 1 are told as a percentage, or three figures would round them to 1."""


@dataclass(frozen=True, slots=True)
class Gain:
    """`ratio` above 1: the plan is better by so much; None: not comparable, or only without a ratio.

    For a cost it is the other's over the plan's, otherwise the plan's value over the other's.
    """

    ratio: float | None
    words: str


def gain(plan: PlanOutcome, other: Baseline | PlanOutcome, objective: Objective) -> Gain:
    """The gain of `plan` over a baseline (or another plan) of the same request, whose objective is given.

    Where the worst-served models fare alike, leximin names the first level at which they differ.
    """
    beside = other.outcome if isinstance(other, Baseline) else other
    if isinstance(other, Baseline) and beside is None:
        return Gain(None, f"n/a: {other.why_not}")
    mine, theirs = levels_of(plan), None if beside is None else levels_of(beside)
    if mine is None or not mine.values:
        return Gain(None, "n/a: there is no plan to compare.")
    if beside is None or theirs is None or not theirs.values:
        return Gain(None, "n/a: there is nothing to compare the plan with.")
    if plan.request_sha256 != beside.request_sha256:
        return Gain(None, "n/a: they answer different requests.")
    goal = goal_of(objective)
    if goal.by_cost:
        return _fewer(plan, beside)
    if not goal.fair:
        return _ratio(mine.values[0], theirs.values[0], f"the {goal.label}", beside)
    pairs = list(zip(mine.values, theirs.values, strict=True))
    differing = [level for level, pair in enumerate(pairs) if not equal(*pair)]
    if not differing:
        every = "every model" if goal.every_level else "the worst-served model"
        return Gain(1.0, f"as good for {every}")
    level = differing[0]
    of_tiers = tier_levels(plan.objective)
    what = f"{_rank(level - of_tiers)} model's normalised throughput"
    if level < of_tiers:
        what = f"level {level + 1} of the tiers, the highest first"
    found = _ratio(*pairs[level], what, beside)
    if level == 0:
        return found
    same = "the same at the levels before" if of_tiers else "the same for the worst-served model"
    return Gain(1.0, f"{same}; {found.words}")


def _ratio(mine: float, theirs: float, of_what: str, beside: PlanOutcome) -> Gain:
    if equal(mine, theirs):
        return Gain(1.0, of_what.replace("the ", "the same ", 1))
    if theirs > 0 and mine >= 0:
        ratio = mine / theirs
        if abs(ratio - 1) < NEAR:
            return Gain(ratio, f"{100 * (ratio - 1):+.2g} % of {of_what}")
        return Gain(ratio, f"{_figure(ratio)} × {of_what}")
    idle = [model.name for model in beside.models if model.throughput_rps == 0]
    if theirs == 0 and idle:
        return Gain(None, f"n/a as a ratio: without the plan {_list(idle)} would not be served at all")
    return Gain(None, f"n/a as a ratio: {_figure(mine)} instead of {_figure(theirs)} for {of_what}")


def _fewer(plan: PlanOutcome, beside: PlanOutcome) -> Gain:
    mine, theirs = plan.objective.value, beside.objective.value
    assert mine is not None and theirs is not None
    ratio = theirs / mine if mine > 0 else None
    used = [sum(gpu.used for gpu in outcome.gpus) for outcome in (plan, beside)]
    if not equal(mine, used[0]) or not equal(theirs, used[1]):
        if equal(mine, theirs):
            return Gain(1.0, "the same cost")
        return Gain(ratio, f"a cost of {_figure(mine)} instead of {_figure(theirs)}")
    fewer = used[1] - used[0]
    if fewer == 0:
        return Gain(1.0, "the same number of GPUs")
    noun = "GPU" if abs(fewer) == 1 else "GPUs"
    return Gain(
        ratio, f"{abs(fewer)} {noun} {'fewer' if fewer > 0 else 'more'} ({used[0]} instead of {used[1]})"
    )


def _rank(level: int) -> str:
    names = ("the worst-served", "the second worst-served", "the third worst-served")
    return names[level] if level < len(names) else f"the {level + 1}th worst-served"


def _list(names: list[str]) -> str:
    shown = names if len(names) <= 3 else [*names[:2], f"{len(names) - 2} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _figure(value: float) -> str:
    return f"{value:.3g}"
