"""A feasible plan explained: what binds each model, what a change would bring, why no other layout.

Every statement is the answer of the planner to a changed request, compared with the plan level
by level (insight_compare.py). What time does not suffice for is said to be open or not examined.
"""

from __future__ import annotations

import time
from dataclasses import replace

from torchsplit_core.planning.insight_ask import Planner
from torchsplit_core.planning.insight_binding import bindings, ranks, settle
from torchsplit_core.planning.insight_changes import (
    Change,
    drops,
    eased,
    forced,
    one_fewer,
    one_more,
    only_gpus,
)
from torchsplit_core.planning.insight_compare import (
    Comparison,
    Levels,
    change_effect,
    compare,
    levels_of,
)
from torchsplit_core.planning.insight_layouts import Unused, unused_layouts
from torchsplit_core.planning.insight_price import price_steps
from torchsplit_core.planning.insight_questions import Questions
from torchsplit_core.planning.request_hash import request_hash
from torchsplit_core.planning.validate import validate
from torchsplit_core.values import (
    ChangeEffect,
    InputFault,
    LayoutReason,
    PlanExplanation,
    PlanOutcome,
    PlanRequest,
    Progress,
    ignore_progress,
)

BUDGET_S = 5.0
"""Seconds for an explanation, or the request's own time limit where that is less."""

RESERVE_S = 0.25
"""Most seconds kept for what follows the last answer."""

MOST_LAYOUTS = 4
"""Layouts to try by planning with them, the most valuable first."""


def explain_plan(
    request: PlanRequest,
    outcome: PlanOutcome,
    deadline: float | None = None,
    *,
    progress: Progress = ignore_progress,
) -> PlanExplanation | None:
    """Explain a plan of the request until `deadline` (time.perf_counter; BUDGET_S from now by default).

    None for an outcome without a plan: an infeasible one carries its own reasons. Raises
    InputFault where the outcome answers another request.
    """
    begun = time.perf_counter()
    validate(request)
    if outcome.request_sha256 != request_hash(request):
        raise InputFault(
            "plan",
            outcome.request_sha256,
            "it answers the request to be explained",
            "Plan the request again.",
        )
    before = levels_of(outcome)
    if before is None or not before.feasible:
        return None
    if deadline is None:
        deadline = begun + min(BUDGET_S, request.solver.time_limit_s)
    # What follows the last answer needs a moment of its own.
    reserve = min(RESERVE_S, 0.1 * max(0.0, deadline - begun))
    with Planner(deadline - reserve) as planner:
        effort = outcome.statistics.build_s + outcome.statistics.solve_s
        return _explain(Questions(request, before, planner, effort), outcome, begun, progress)


def _explain(questions: Questions, outcome: PlanOutcome, begun: float, progress: Progress) -> PlanExplanation:
    """Every question in the order of its use to a reader, so that what time leaves out is the least."""
    request, places = questions.request, ranks(outcome)
    relaxation = questions.bound(request)
    if relaxation is not None:
        questions.before = _tightened(questions.before, relaxation.bound, negated=questions.negated)
    layouts = unused_layouts(request, outcome, relaxation) if questions.planner.left else []
    tries = [item for item in layouts if item.open][:MOST_LAYOUTS]
    more, fewer, softer = one_more(request), one_fewer(request), eased(request)
    # The worst-served models come first: they are asked about most.
    gone = sorted(drops(request), key=lambda change: places.get(change.spec.model or "", 0))
    questions.expected = len(more) + len(fewer) + len(gone) + len(softer) + len(tries) + 1

    def told(change: Change, found: Comparison) -> ChangeEffect:
        stands = places.get(change.spec.model or "", 0) if len(questions.before.values) > 1 else 0
        return change_effect(change.spec, found, questions.before, stands, negated=questions.negated)

    progress(0.05, "What one more GPU would bring")
    grown = [questions.effect(change.apply, eases=True) for change in more]
    progress(0.2, "What one GPU fewer would cost")
    shrunk = [
        # With one of them idle, the plan is a plan of the smaller fleet as it stands.
        compare(questions.before, questions.before, eases=False)
        if any(not outcome.gpus[place].used for place in members)
        else questions.effect(change.apply, eases=False)
        for change, members in fewer
    ]
    progress(0.3, "What binds each model")
    free = settle(questions, gone)
    progress(0.65, "Why not another layout")
    trials = [_try(questions, outcome, item) for item in tries]
    progress(0.8, "What easing each demand would bring")
    dropped = {(c.spec.what, c.spec.model): found for c, found in zip(gone, free, strict=True)}
    looser = [
        questions.inherited(dropped[change.spec.what, change.spec.model])
        or questions.effect(change.apply, eases=True)
        for change in softer
    ]
    progress(0.95, "The price of each step")
    steps = price_steps(questions, outcome, relaxation)
    tried = {
        (item.gpu, item.reason.layout): told(change, found)
        for item, (change, found) in zip(tries, trials, strict=True)
    }
    capacity = [(told(change, found), found) for change, found in zip(more, grown, strict=True)]
    limits = [(told(change, found), found) for change, found in zip(gone, free, strict=True)]
    changes = (
        *(change for change, _ in capacity),
        *(told(change, found) for (change, _), found in zip(fewer, shrunk, strict=True)),
        *(told(change, found) for change, found in zip(softer, looser, strict=True)),
    )
    reasons = tuple(_reason(item, tried.get((item.gpu, item.reason.layout))) for item in layouts)
    effects = [*changes, *(change for change, _ in limits), *(r.trial for r in reasons if r.trial)]
    complete = all(item.effect not in ("open", "not_examined") for item in effects) and all(
        reason.reason != "not_examined" for reason in reasons
    )
    models = bindings(request, outcome, questions.before, capacity, limits)
    return PlanExplanation(models, changes, reasons, steps, time.perf_counter() - begun, complete)


def _tightened(before: Levels, bound: float, *, negated: bool) -> Levels:
    """The plan's levels with the relaxation's bound, where the first level is not proven."""
    limit = -bound if negated else bound
    if before.proven or (before.bound is not None and before.bound <= limit):
        return before
    return replace(before, bound=max(limit, before.values[0]))


def _try(questions: Questions, outcome: PlanOutcome, item: Unused) -> tuple[Change, Comparison]:
    """The plan with the layout on one GPU."""
    if not questions.negated:
        change = forced(questions.request, item.gpu, item.place, item.reason.layout)
        return change, questions.effect(change.apply, eases=False)
    # Fewest GPUs: an idle GPU would take the layout and prove nothing, so only those in use count.
    working = [place for place, gpu in enumerate(outcome.gpus) if gpu.used]
    fewer = only_gpus(questions.request, working)
    change = forced(fewer, item.gpu, working.index(item.place), item.reason.layout)
    found = questions.first(change.apply(fewer), eases=False)
    return change, compare(questions.before, found, eases=False)


def _reason(item: Unused, trial: ChangeEffect | None) -> LayoutReason:
    if trial is None or trial.effect == "not_examined":
        return item.reason
    return replace(item.reason, reason="tried", trial=trial)
