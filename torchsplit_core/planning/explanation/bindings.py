"""What binds each model: the demands whose removal alone makes the objective provably better.

Removing more never makes a plan worse, so demands are tried together first: where dropping
all of a group changes nothing, none of them binds, and one question has answered for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from torchsplit_core.planning.explanation.changes import Change
from torchsplit_core.planning.explanation.levels import NOT_EXAMINED, LevelComparison
from torchsplit_core.planning.explanation.questions import Questions
from torchsplit_core.planning.outcome.levels import Levels, same
from torchsplit_core.planning.problem.build import build_problem
from torchsplit_core.planning.request.objective import Rung, goal_of, reached, rungs
from torchsplit_core.planning.request.ties import models_of
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


def settle(questions: Questions, changes: Sequence[Change], *, deep: bool = False) -> list[LevelComparison]:
    """The effect of each change alone, in the order given: together first, then halves, then one by one."""
    if not changes:
        return []
    if not questions.planner.left:
        return [NOT_EXAMINED] * len(changes)
    if questions.hopeless:
        return [questions.effect(change.apply, eases=True) for change in changes]

    def all_of(request: PlanRequest) -> PlanRequest:
        for change in changes:
            request = change.apply(request)
        return request

    found = questions.effect(all_of, eases=True, deep=deep)
    if len(changes) == 1:
        return [found]
    inherited = questions.inherited(found)
    if inherited is not None:
        return [inherited] * len(changes)
    questions.expected += 2
    half = len(changes) // 2
    return settle(questions, changes[:half], deep=deep) + settle(questions, changes[half:], deep=deep)


def ranks(request: PlanRequest, outcome: PlanOutcome) -> dict[str, int]:
    """Each model's level, from 0: its place among the sorted r, ties in the order of the request; with tiers among
    those of its tier as long as it is below its demand there."""
    r = [model.normalised for model in outcome.models]
    paid = _paid(outcome)
    found: dict[str, int] = {}
    spans = _spans(request)
    for rung, span in spans:
        for level, index in zip(span, sorted(rung.models, key=lambda index: (r[index], index)), strict=True):
            if rung is spans[-1][0] or r[index] - paid < rung.cap * (1 - TOLERANCE):
                found.setdefault(outcome.models[index].name, level)
    return found


def _spans(request: PlanRequest) -> list[tuple[Rung, range]]:
    """The rungs whose levels models stand at, each with its levels."""
    found, first = [], 0
    every = rungs(request.models)
    for rung in every if goal_of(request).every_level else every[-1:]:
        found.append((rung, range(first, first + len(rung.models))))
        first += len(rung.models)
    return found


def _paid(outcome: PlanOutcome) -> float:
    """The penalty that is taken from every r of a fair objective."""
    objective = outcome.objective
    last = reached(objective)[-len(outcome.models) :]
    return objective.sorted_normalised[0] - last[0] if goal_of(objective).every_level else 0.0


def bindings(
    request: PlanRequest,
    outcome: PlanOutcome,
    before: Levels,
    capacity: Sequence[tuple[ChangeEffect, LevelComparison]],
    dropped: Sequence[tuple[ChangeEffect, LevelComparison]],
) -> tuple[ModelBinding, ...]:
    """One entry a model, in the order of the request; `capacity` has one more GPU of each kind."""
    rank_of = ranks(request, outcome)
    runs = {case.model for case in build_problem(request).cases}
    found = []
    for index, (spec, got) in enumerate(zip(request.models, outcome.models, strict=True)):
        level = rank_of[spec.name]
        limits: list[ModelLimit] = []
        if index not in runs:
            limits.append(ModelLimit("no_admissible_point", True))
        ties = _ties(request, outcome, before, spec.name, rank_of)
        if ties is None:
            limits.append(ModelLimit("objective", True))
        elif index in runs:
            limits.append(_shared_limit("capacity", capacity, before, ties))
        for change, comparison in dropped:
            if change.what == "max_tenants_per_slice":
                if ties is not None and index in runs:
                    limits.append(_shared_limit(change.what, [(change, comparison)], before, ties))
            elif change.model == spec.name or spec.name in _concerned(request, change):
                limits.append(ModelLimit(cast(LimitKind, change.what), _BINDS.get(comparison.effect), change))
        found.append(ModelBinding(spec.name, level + 1, got.normalised, tuple(limits)))
    return tuple(found)


def _concerned(request: PlanRequest, change: ChangeEffect) -> frozenset[str]:
    """The models of a co-location, by names of theirs or of their stages."""
    return models_of(request.models, Colocation(change.models)) if change.models else frozenset()


_BINDS: Mapping[str, bool] = {"better": True, "same": False}


def _ties(
    request: PlanRequest, outcome: PlanOutcome, before: Levels, name: str, rank_of: Mapping[str, int]
) -> range | None:
    """The levels of the models that are served as well as this one; None where the objective passes it by.

    One that ends with the worst served asks for no more than the least r; a sum has one level for all.
    """
    goal = goal_of(request)
    if not goal.fair:
        return range(1)
    values = before.values
    if not goal.every_level:
        ranked = outcome.objective.sorted_normalised
        worst = [outcome.models[index].normalised for index in rungs(request.models)[0].models]
        own = ranked[rank_of[name]]
        return range(1) if same(own, min(worst)) and own in worst else None
    own_level = rank_of[name]
    span = next(span for _, span in _spans(request) if own_level in span)
    equal = [level for level in span if level == own_level or same(values[level], values[own_level])]
    return range(equal[0], equal[-1] + 1)


def _shared_limit(
    kind: LimitKind,
    evidence: Sequence[tuple[ChangeEffect, LevelComparison]],
    before: Levels,
    ties: range,
) -> ModelLimit:
    """A limit of the whole plan as one of the models at these levels: does any change raise their level?"""
    answers = [_raised(comparison, before, ties) for _, comparison in evidence]
    for answer, (change, _) in zip(answers, evidence, strict=True):
        if answer:
            return ModelLimit(kind, True, change)
    unsettled = [change for answer, (change, _) in zip(answers, evidence, strict=True) if answer is None]
    if unsettled or not evidence:
        return ModelLimit(kind, None, unsettled[0] if unsettled else None)
    return ModelLimit(kind, False, evidence[0][0])


def _raised(found: LevelComparison, before: Levels, ties: range) -> bool | None:
    """Whether the best levels after the change are higher at `ties`; None where that is not proven."""
    if found.effect == "same":
        return False
    if found.level is None or found.effect not in ("better", "open"):
        return None
    if found.level >= ties.stop:
        # All levels up to these are proven equal.
        return False
    if found.effect == "better" and found.level in ties:
        return True
    after = found.after
    if found.effect == "open" or after is None or min(after.proven, before.proven) < ties.stop:
        return None
    # A level before these rises; that the later ones are proven too tells where they go.
    return any(
        after.values[level] > before.values[level] and not same(after.values[level], before.values[level])
        for level in ties
    )
