"""What binds each model: the demands whose removal alone makes the objective provably better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from torchsplit_core.planning.explanation.level_comparison import LevelComparison
from torchsplit_core.planning.outcome.levels import Levels, known_equal
from torchsplit_core.planning.problem.build import build_problem
from torchsplit_core.planning.request.colocation_index import colocated_models
from torchsplit_core.planning.request.objective import TierGroup, goal_of, reached_levels, tier_groups
from torchsplit_core.planning.tolerance import TOLERANCE
from torchsplit_core.values import (
    ChangeEffect,
    Colocation,
    ModelBinding,
    ModelLimit,
    PlanOutcome,
    PlanRequest,
)
from torchsplit_core.values.plan.explanation import LimitKind


def level_ranks(request: PlanRequest, outcome: PlanOutcome) -> dict[str, int]:
    """Each model's level, from 0: its rank among the sorted r, ties in the order of the request; with tiers, its rank
    in its tier while it is below its demand there."""
    r = [model.normalised for model in outcome.models]
    penalty = _penalty(outcome)
    by_name: dict[str, int] = {}
    spans = _level_spans(request)
    for tier_group, span in spans:
        for level, index in zip(
            span, sorted(tier_group.models, key=lambda index: (r[index], index)), strict=True
        ):
            if tier_group is spans[-1][0] or r[index] - penalty < tier_group.cap * (1 - TOLERANCE):
                by_name.setdefault(outcome.models[index].name, level)
    return by_name


def _level_spans(request: PlanRequest) -> list[tuple[TierGroup, range]]:
    """The tier groups in which a model can have its level, each with its levels."""
    spans, first = [], 0
    all_groups = tier_groups(request.models)
    for tier_group in all_groups if goal_of(request).every_level else all_groups[-1:]:
        spans.append((tier_group, range(first, first + len(tier_group.models))))
        first += len(tier_group.models)
    return spans


def _penalty(outcome: PlanOutcome) -> float:
    """The penalty subtracted from every r of a fair objective."""
    objective = outcome.objective
    last = reached_levels(objective)[-len(outcome.models) :]
    return objective.sorted_normalised[0] - last[0] if goal_of(objective).every_level else 0.0


def model_bindings(
    request: PlanRequest,
    outcome: PlanOutcome,
    before: Levels,
    capacity: Sequence[tuple[ChangeEffect, LevelComparison]],
    without: Sequence[tuple[ChangeEffect, LevelComparison]],
) -> tuple[ModelBinding, ...]:
    """One entry a model, in the order of the request; `capacity` adds one GPU of each kind."""
    rank_of = level_ranks(request, outcome)
    runnable = {case.model for case in build_problem(request).cases}
    by_model = []
    for index, (spec, planned) in enumerate(zip(request.models, outcome.models, strict=True)):
        level = rank_of[spec.name]
        limits: list[ModelLimit] = []
        if index not in runnable:
            limits.append(ModelLimit("no_admissible_point", True))
        tied_levels = _tied_levels(request, outcome, before, spec.name, rank_of)
        if tied_levels is None:
            limits.append(ModelLimit("objective", True))
        elif index in runnable:
            limits.append(_shared_limit("capacity", capacity, before, tied_levels))
        for change, comparison in without:
            if change.what == "max_tenants_per_slice":
                if tied_levels is not None and index in runnable:
                    limits.append(_shared_limit(change.what, [(change, comparison)], before, tied_levels))
            elif change.model == spec.name or spec.name in _colocated_names(request, change):
                limits.append(ModelLimit(cast(LimitKind, change.what), _BINDS.get(comparison.effect), change))
        by_model.append(ModelBinding(spec.name, level + 1, planned.normalised, tuple(limits)))
    return tuple(by_model)


def _colocated_names(request: PlanRequest, change: ChangeEffect) -> frozenset[str]:
    """The models of a co-location, given by names of models or stages."""
    return colocated_models(request.models, Colocation(change.models)) if change.models else frozenset()


_BINDS: Mapping[str, bool] = {"better": True, "same": False}


def _tied_levels(
    request: PlanRequest, outcome: PlanOutcome, before: Levels, name: str, rank_of: Mapping[str, int]
) -> range | None:
    """The levels of the models that are served as well as this one; None if the objective ignores it.

    max_min considers only the least r; a sum has one level for all.
    """
    goal = goal_of(request)
    if not goal.fair:
        return range(1)
    values = before.values
    if not goal.every_level:
        ranked = outcome.objective.sorted_normalised
        worst = [outcome.models[index].normalised for index in tier_groups(request.models)[0].models]
        value = ranked[rank_of[name]]
        return range(1) if known_equal(value, min(worst)) and value in worst else None
    own_level = rank_of[name]
    span = next(span for _, span in _level_spans(request) if own_level in span)
    equal = [level for level in span if level == own_level or known_equal(values[level], values[own_level])]
    return range(equal[0], equal[-1] + 1)


def _shared_limit(
    kind: LimitKind,
    evidence: Sequence[tuple[ChangeEffect, LevelComparison]],
    before: Levels,
    tied_levels: range,
) -> ModelLimit:
    """A limit of the whole plan for the models at these levels: does any change raise their level?"""
    raises = [_raises_level(comparison, before, tied_levels) for _, comparison in evidence]
    for raised, (change, _) in zip(raises, evidence, strict=True):
        if raised:
            return ModelLimit(kind, True, change)
    unsettled = [change for raised, (change, _) in zip(raises, evidence, strict=True) if raised is None]
    if unsettled or not evidence:
        return ModelLimit(kind, None, unsettled[0] if unsettled else None)
    return ModelLimit(kind, False, evidence[0][0])


def _raises_level(comparison: LevelComparison, before: Levels, tied_levels: range) -> bool | None:
    """Whether the best levels after the change are higher at `tied_levels`; None where that is not proven."""
    if comparison.effect == "same":
        return False
    if comparison.level is None or comparison.effect not in ("better", "open"):
        return None
    if comparison.level >= tied_levels.stop:
        # All levels up to these are proven equal.
        return False
    if comparison.effect == "better" and comparison.level in tied_levels:
        return True
    after = comparison.after
    if comparison.effect == "open" or after is None or min(after.proven, before.proven) < tied_levels.stop:
        return None
    # An earlier level rises; only if the later ones are proven too is it known where they go.
    return any(
        after.values[level] > before.values[level]
        and not known_equal(after.values[level], before.values[level])
        for level in tied_levels
    )
