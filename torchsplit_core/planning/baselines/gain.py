"""What a plan gains over another way to answer its request, as a ratio and in words."""

from __future__ import annotations

from dataclasses import dataclass

from torchsplit_core.planning.baselines.baseline_plans import Baseline
from torchsplit_core.planning.outcome.levels import outcome_levels
from torchsplit_core.planning.request.objective import goal_of, tier_level_count
from torchsplit_core.planning.tolerance import equal
from torchsplit_core.values import Objective, PlanOutcome

PERCENT_BELOW = 0.02
"""Ratios closer to 1 are written as a percentage: three figures would round them to 1."""


@dataclass(frozen=True, slots=True)
class Gain:
    """`ratio` above 1: the plan is better by this factor; None: not comparable, or not by a ratio.

    For a cost the other plan's over this plan's, otherwise this plan's value over the other's.
    """

    ratio: float | None
    description: str


def gain(plan: PlanOutcome, other: Baseline | PlanOutcome, objective: Objective) -> Gain:
    """The gain of `plan` over a baseline (or another plan) of the same request, whose objective is given.

    If the worst-served models get the same, leximin names the first level that differs.
    """
    other_outcome = other.outcome if isinstance(other, Baseline) else other
    if isinstance(other, Baseline) and other_outcome is None:
        return Gain(None, f"n/a: {other.reason}")
    plan_levels, other_levels = (
        outcome_levels(plan),
        None if other_outcome is None else outcome_levels(other_outcome),
    )
    if plan_levels is None or not plan_levels.values:
        return Gain(None, "n/a: there is no plan to compare.")
    if other_outcome is None or other_levels is None or not other_levels.values:
        return Gain(None, "n/a: there is nothing to compare the plan with.")
    if plan.request_sha256 != other_outcome.request_sha256:
        return Gain(None, "n/a: they answer different requests.")
    goal = goal_of(objective)
    if goal.by_cost:
        return _cost_gain(plan, other_outcome)
    if not goal.fair:
        return _ratio_gain(plan_levels.values[0], other_levels.values[0], f"the {goal.label}", other_outcome)
    pairs = list(zip(plan_levels.values, other_levels.values, strict=True))
    differing = [level for level, pair in enumerate(pairs) if not equal(*pair)]
    if not differing:
        every = "every model" if goal.every_level else "the worst-served model"
        return Gain(1.0, f"as good for {every}")
    level = differing[0]
    of_tiers = tier_level_count(plan.objective)
    measure = f"{_format_rank(level - of_tiers)} model's normalised throughput"
    if level < of_tiers:
        measure = f"level {level + 1} of the tiers, the highest first"
    level_gain = _ratio_gain(*pairs[level], measure, other_outcome)
    if level == 0:
        return level_gain
    same = "the same at the levels before" if of_tiers else "the same for the worst-served model"
    return Gain(1.0, f"{same}; {level_gain.description}")


def _ratio_gain(value: float, other_value: float, of_what: str, other_outcome: PlanOutcome) -> Gain:
    if equal(value, other_value):
        return Gain(1.0, of_what.replace("the ", "the same ", 1))
    if other_value > 0 and value >= 0:
        ratio = value / other_value
        if abs(ratio - 1) < PERCENT_BELOW:
            return Gain(ratio, f"{100 * (ratio - 1):+.2g} % of {of_what}")
        return Gain(ratio, f"{_format_figure(ratio)} × {of_what}")
    idle = [model.name for model in other_outcome.models if model.throughput_rps == 0]
    if other_value == 0 and idle:
        return Gain(
            None, f"n/a as a ratio: without the plan {_format_names(idle)} would not be served at all"
        )
    return Gain(
        None,
        f"n/a as a ratio: {_format_figure(value)} instead of {_format_figure(other_value)} for {of_what}",
    )


def _cost_gain(plan: PlanOutcome, other_outcome: PlanOutcome) -> Gain:
    value, other_value = plan.objective.value, other_outcome.objective.value
    assert value is not None and other_value is not None
    ratio = other_value / value if value > 0 else None
    used = [sum(gpu.used for gpu in outcome.gpus) for outcome in (plan, other_outcome)]
    if not equal(value, used[0]) or not equal(other_value, used[1]):
        if equal(value, other_value):
            return Gain(1.0, "the same cost")
        return Gain(ratio, f"a cost of {_format_figure(value)} instead of {_format_figure(other_value)}")
    fewer = used[1] - used[0]
    if fewer == 0:
        return Gain(1.0, "the same number of GPUs")
    noun = "GPU" if abs(fewer) == 1 else "GPUs"
    return Gain(
        ratio, f"{abs(fewer)} {noun} {'fewer' if fewer > 0 else 'more'} ({used[0]} instead of {used[1]})"
    )


def _format_rank(level: int) -> str:
    names = ("the worst-served", "the second worst-served", "the third worst-served")
    return names[level] if level < len(names) else f"the {level + 1}th worst-served"


def _format_names(names: list[str]) -> str:
    shown = names if len(names) <= 3 else [*names[:2], f"{len(names) - 2} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _format_figure(value: float) -> str:
    return f"{value:.3g}"
