"""A feasible plan explained: what binds each model, what a change would bring, why no other layout.

Every statement is the answer of the planner to a changed request, compared with the plan level
by level (levels.py). What time does not suffice for is said to be open or not examined.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from torchsplit_core.planning.explanation.bindings import bindings, ranks, settle
from torchsplit_core.planning.explanation.changes import (
    Change,
    drops,
    eased,
    forced,
    one_fewer,
    one_more,
    only_gpus,
)
from torchsplit_core.planning.explanation.layouts import Unused, unused_layouts
from torchsplit_core.planning.explanation.levels import LevelComparison, change_effect, compare_levels
from torchsplit_core.planning.explanation.price_steps import price_steps
from torchsplit_core.planning.explanation.questions import Questions
from torchsplit_core.planning.explanation.worker import Hear, Planner, hear_nothing
from torchsplit_core.planning.outcome.levels import Levels, levels_of
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.request.validate import validate
from torchsplit_core.solver.pyomo_model import load_pyomo
from torchsplit_core.values import (
    ChangeEffect,
    InputFault,
    LayoutReason,
    PlanExplanation,
    PlanOutcome,
    PlanRequest,
    PriceStep,
    Progress,
    ignore_progress,
)

BUDGET_S = 5.0
"""Seconds for an explanation, or the request's own time limit where that is less."""

RESERVE_S = 0.25
"""Most seconds kept for what follows the last answer."""

MOST_LAYOUTS = 4
"""Layouts to try by planning with them, the most valuable first; more of them with the time left over."""

UNSETTLED = ("open", "not_examined")


def explain_plan(
    request: PlanRequest,
    outcome: PlanOutcome,
    deadline: float | None = None,
    *,
    progress: Progress = ignore_progress,
    hear: Hear = hear_nothing,
) -> PlanExplanation | None:
    """Explain a plan of the request until `deadline` (time.perf_counter; BUDGET_S from now by default).

    `hear` gets every plan of a changed request on the way.

    None for an outcome without a plan: an infeasible one carries its own reasons. Raises
    InputFault where the outcome answers another request.
    """
    # Before the workers are forked, which would each import it.
    loading_s = load_pyomo()
    deadline = None if deadline is None else deadline + loading_s
    begun = time.perf_counter()
    validate(request)
    if outcome.request_sha256 != request_hash(request):
        raise InputFault(
            "plan", "answers another request than the one to be explained", "Plan the request again."
        )
    before = levels_of(outcome)
    if before is None or not before.feasible:
        return None
    if deadline is None:
        deadline = begun + min(BUDGET_S, request.solver.time_limit_s)
    # What follows the last answer needs a moment of its own.
    reserve = min(RESERVE_S, 0.1 * max(0.0, deadline - begun))
    with Planner(deadline - reserve, hear) as planner:
        effort = outcome.statistics.build_s + outcome.statistics.solve_s
        found = _ask(Questions(request, before, planner, effort), outcome, progress)
    return _told(found, begun)


@dataclass
class _Found:
    """The answers so far, beside what was asked."""

    questions: Questions
    outcome: PlanOutcome
    layouts: list[Unused]
    more: list[tuple[Change, LevelComparison]] = field(default_factory=list)
    fewer: list[tuple[Change, LevelComparison]] = field(default_factory=list)
    gone: list[tuple[Change, LevelComparison]] = field(default_factory=list)
    softer: list[tuple[Change, LevelComparison]] = field(default_factory=list)
    trials: list[tuple[Unused, Change, LevelComparison]] = field(default_factory=list)
    steps: tuple[PriceStep, ...] = ()


def _ask(questions: Questions, outcome: PlanOutcome, progress: Progress) -> _Found:
    """Every question in the order of its use to a reader, so that what time leaves out is the least."""
    request, rank_of = questions.request, ranks(questions.request, outcome)
    relaxation = questions.bound(request)
    if relaxation is not None:
        questions.before = _tightened(questions.before, relaxation.bound, negated=questions.negated)
    found = _Found(
        questions,
        outcome,
        unused_layouts(request, outcome, relaxation) if questions.planner.left else [],
    )
    open_layouts = [item for item in found.layouts if item.open]
    tries = open_layouts[:MOST_LAYOUTS]
    more, fewer, softer = one_more(request), one_fewer(request), eased(request)
    # The worst-served models come first: they are asked about most.
    gone = sorted(drops(request), key=lambda change: rank_of.get(change.spec.model or "", 0))
    questions.expected = len(more) + len(fewer) + len(gone) + len(softer) + len(tries) + 1
    progress(0.05, "What one more GPU would bring")
    found.more = [(change, questions.effect(change.apply, eases=True)) for change in more]
    progress(0.15, "What one GPU fewer would cost")
    for change, members in fewer:
        if any(not outcome.gpus[index].used for index in members):
            # With one of them idle, the plan is a plan of the smaller fleet as it stands.
            found.fewer.append((change, compare_levels(questions.before, questions.before, eases=False)))
        else:
            found.fewer.append((change, questions.effect(change.apply, eases=False)))
    progress(0.25, "What binds each model")
    found.gone = list(zip(gone, settle(questions, gone), strict=True))
    progress(0.5, "Why not another layout")
    found.trials = [(item, *_try(questions, outcome, item)) for item in tries]
    progress(0.65, "What easing each demand would bring")
    _ease(found, softer)
    progress(0.8, "The price of each step")
    found.steps = price_steps(questions, outcome, relaxation)
    progress(0.9, "A second look at what is still open")
    _deepen(found)
    rest = open_layouts[MOST_LAYOUTS:]
    found.trials += [(item, *_try(questions, outcome, item)) for item in rest if questions.planner.left]
    return found


def _ease(found: _Found, softer: tuple[Change, ...]) -> None:
    """Demands eased by a tenth, and a faster link: what changes nothing when dropped changes nothing when eased."""
    questions = found.questions
    known = {(change.spec.what, change.spec.model): effect for change, effect in found.gone}
    for change in softer:
        dropped = known.get((change.spec.what, change.spec.model))
        # Of the link, which all models share, nothing is known from those of single models.
        effect = None if dropped is None else questions.inherited(dropped)
        found.softer.append((change, effect or questions.effect(change.apply, eases=True)))


def _deepen(found: _Found) -> None:
    """All levels, with the time left over, where only the first was planned."""
    questions = found.questions

    def again(entries: list[tuple[Change, LevelComparison]]) -> None:
        indices = [index for index, (_, effect) in enumerate(entries) if questions.shallow(effect)]
        if not indices or questions.planner.left < questions.effort_s:
            return
        looks = settle(questions, [entries[index][0] for index in indices], deep=True)
        for index, look in zip(indices, looks, strict=True):
            change, effect = entries[index]
            if look.effect not in UNSETTLED or (look.level or 0) > (effect.level or 0):
                entries[index] = change, look

    again(found.gone)
    again(found.more)
    settled = {(change.spec.what, change.spec.model): effect for change, effect in found.gone}
    for index, (change, _) in enumerate(found.softer):
        dropped = settled.get((change.spec.what, change.spec.model))
        if dropped is not None and dropped.effect == "same":
            found.softer[index] = change, dropped
    again(found.softer)
    for index, (item, change, effect) in enumerate(found.trials):
        if questions.shallow(effect) and questions.planner.left > questions.effort_s:
            look = questions.effect(change.apply, eases=False, deep=True)
            if look.effect not in UNSETTLED:
                found.trials[index] = item, change, look


def _told(found: _Found, begun: float) -> PlanExplanation:
    """The answers as the explanation's values."""
    questions, rank_of = found.questions, ranks(found.questions.request, found.outcome)

    def told(change: Change, effect: LevelComparison) -> ChangeEffect:
        stands = rank_of.get(change.spec.model or "", 0) if len(questions.before.values) > 1 else 0
        return change_effect(change.spec, effect, questions.before, stands, negated=questions.negated)

    capacity = [(told(change, effect), effect) for change, effect in found.more]
    limits = [(told(change, effect), effect) for change, effect in found.gone]
    changes = (
        *(change for change, _ in capacity),
        *(told(change, effect) for change, effect in (*found.fewer, *found.softer)),
    )
    trials = {(item.gpu, item.reason.layout): told(change, effect) for item, change, effect in found.trials}
    reasons = tuple(_reason(item, trials.get((item.gpu, item.reason.layout))) for item in found.layouts)
    effects = [*changes, *(change for change, _ in limits), *(r.trial for r in reasons if r.trial)]
    complete = bool(capacity) and all(item.effect not in UNSETTLED for item in effects)
    return PlanExplanation(
        bindings(questions.request, found.outcome, questions.before, capacity, limits),
        changes,
        reasons,
        found.steps,
        time.perf_counter() - begun,
        complete and all(reason.reason != "not_examined" for reason in reasons),
    )


def _tightened(before: Levels, bound: float, *, negated: bool) -> Levels:
    """The plan's levels with the relaxation's bound, where the first level is not proven."""
    limit = -bound if negated else bound
    if before.proven or (before.bound is not None and before.bound <= limit):
        return before
    return replace(before, bound=max(limit, before.values[0]))


def _try(questions: Questions, outcome: PlanOutcome, item: Unused) -> tuple[Change, LevelComparison]:
    """The plan with the layout on one GPU."""
    if not questions.negated:
        change = forced(questions.request, item.gpu, item.index, item.reason.layout)
        return change, questions.effect(change.apply, eases=False)
    # Fewest GPUs: an idle GPU would take the layout and prove nothing, so only those in use count.
    working = [index for index, gpu in enumerate(outcome.gpus) if gpu.used]
    fewer = only_gpus(questions.request, working)
    change = forced(fewer, item.gpu, working.index(item.index), item.reason.layout)
    found = questions.first(change.apply(fewer), eases=False)
    return change, compare_levels(questions.before, found, eases=False)


def _reason(item: Unused, trial: ChangeEffect | None) -> LayoutReason:
    if trial is None or trial.effect == "not_examined":
        return item.reason
    return replace(item.reason, reason="tried", trial=trial)
