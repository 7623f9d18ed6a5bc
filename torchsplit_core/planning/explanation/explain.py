"""A feasible plan explained: what binds each model, the effects of changes, why no other layout.

Every statement is the planner's answer to a changed request, compared with the plan level by level (outcome/levels).
What time does not suffice for is open, between a plan and a proven bound; without any time it is not examined.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from torchsplit_core.planning.explanation.binding_limits import level_ranks, model_bindings
from torchsplit_core.planning.explanation.changes import (
    Change,
    EngineQuestions,
    add_gpu,
    apply_all,
    force_layout,
    only_gpus,
    relaxed_demand,
    remove_gpu,
    without_demand,
)
from torchsplit_core.planning.explanation.level_comparison import (
    LevelComparison,
    compare_levels,
    with_comparison,
)
from torchsplit_core.planning.explanation.planner_process import PlannerProcesses
from torchsplit_core.planning.explanation.price_steps import other_sharing, price_steps
from torchsplit_core.planning.explanation.questions import FIRST, LAST, Question, Questions
from torchsplit_core.planning.explanation.settling import (
    OutcomeCallback,
    Settling,
    ignore_outcome,
    without_tie_breaks,
)
from torchsplit_core.planning.explanation.unused_layouts import UnusedLayout, unused_layouts
from torchsplit_core.planning.outcome.levels import Levels, outcome_levels
from torchsplit_core.planning.outcome.resilience import levels_without_gpus
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.request.objective import first_level_objective, goal_of, reads_samples
from torchsplit_core.planning.request.validate import validate
from torchsplit_core.solver.pyomo_model import load_pyomo
from torchsplit_core.values import (
    ChangeEffect,
    EngineReason,
    InputFault,
    LayoutReason,
    PlanExplanation,
    PlanOutcome,
    PlanRequest,
    PriceStep,
    Progress,
    ignore_progress,
)

BUDGET_S = 20.0
"""Seconds for an explanation, or the request's own time limit if shorter."""

RESERVE_S = 0.25
"""Most seconds reserved for what follows the last plan."""

GROUP_SIZE = 8
"""Demands dropped or eased together if there are twice as many: if that changes nothing, none of them does alone."""

ENGINE_LIMITS = ("max_ttft_ms", "max_tpot_ms")
"""Limits whose easing alone tells whether they bind."""

UNSETTLED = ("open", "not_examined")


def explain_plan(
    request: PlanRequest,
    outcome: PlanOutcome,
    deadline: float | None = None,
    *,
    engines: EngineQuestions = EngineQuestions(),  # noqa: B008 - frozen
    progress: Progress = ignore_progress,
    on_outcome: OutcomeCallback = ignore_outcome,
    known: Callable[[PlanRequest], PlanOutcome | None] = lambda request: None,
) -> PlanExplanation | None:
    """Explain a plan of the request until `deadline` (time.perf_counter; BUDGET_S from now by default).

    `engines`: what to ask of LLMs. `on_outcome` gets every plan of a changed request, `known` has those of an
    explanation before. None for an outcome without a plan (an infeasible one carries its own reasons), and for an
    objective of demand samples. Raises InputFault if the outcome answers another request.
    """
    # Imported before the workers are forked, which would each import it.
    loading_s = load_pyomo()
    deadline = None if deadline is None else deadline + loading_s
    begun = time.perf_counter()
    validate(request)
    if outcome.request_sha256 != request_hash(request):
        raise InputFault(
            "plan", "answers another request than the one to be explained", "Plan the request again."
        )
    reached = outcome_levels(outcome)
    if reached is None or not reached.feasible or reads_samples(request):
        return None
    if deadline is None:
        deadline = begun + min(BUDGET_S, request.solver.time_limit_s)
    # What follows the last probe needs time too.
    reserve = min(RESERVE_S, 0.1 * max(0.0, deadline - begun))
    with PlannerProcesses[Question](deadline - reserve) as planners:
        effort_s = outcome.statistics.build_s + outcome.statistics.solve_s
        plan = Question(without_tie_breaks(request), True, len(reached.values))
        plan.take_outcome(outcome)
        settling = Settling(Questions(plan), planners, effort_s, on_outcome)
        asked = _ask(settling, request, outcome, engines)
        if planners.remaining_s:
            settling.recall(known)
            settling.run(progress)
    return _build_explanation(asked, begun)


@dataclass
class _Asked:
    """The questions by what they are about."""

    request: PlanRequest
    outcome: PlanOutcome
    settling: Settling
    layouts: list[UnusedLayout] = field(default_factory=list)
    gpu_added: list[tuple[Change, Question]] = field(default_factory=list)
    gpu_removed: list[tuple[Change, Question]] = field(default_factory=list)
    demand_dropped: list[tuple[Change, Question]] = field(default_factory=list)
    demand_relaxed: list[tuple[Change, Question]] = field(default_factory=list)
    trials: list[tuple[UnusedLayout, Change, Question]] = field(default_factory=list)
    places: list[tuple[EngineReason, Change | None, Question | None]] = field(default_factory=list)
    sharing: Question | None = None


def _ask(settling: Settling, request: PlanRequest, outcome: PlanOutcome, engines: EngineQuestions) -> _Asked:
    """All questions of a plan, those that bound many others bounded first."""
    questions = settling.questions
    plain, level_count = questions.plan.request, questions.plan.level_count
    asked = _Asked(request, outcome, settling)

    def question(change: Change, *, relaxes: bool) -> Question:
        return questions.add(Question(change.apply(plain), relaxes, level_count))

    asked.gpu_added = [(change, question(change, relaxes=True)) for change in add_gpu(request)]
    for change, members in remove_gpu(request):
        fewer = question(change, relaxes=False)
        # Without one that is idle, the plan is also a plan of the smaller fleet.
        idle = any(not outcome.gpus[index].used for index in members)
        fewer.take_plan(
            questions.plan.lower
            if idle
            else levels_without_gpus(request, outcome.gpus, members)[:level_count]
        )
        if not fewer.lower:
            fewer.order = FIRST
        asked.gpu_removed.append((change, fewer))
    asked.demand_dropped = [(change, question(change, relaxes=True)) for change in without_demand(request)]
    relaxed = (*relaxed_demand(request), *engines.eased)
    asked.demand_relaxed = [(change, question(change, relaxes=True)) for change in relaxed]
    for reason, only_there in engines.places:
        item = None if only_there is None else question(only_there, relaxes=False)
        if item is not None:
            item.order, item.writable = LAST, False
        asked.places.append((reason, only_there, item))
    if not settling.planners.remaining_s:
        return asked
    settling.relaxation = settling.bound(questions.plan)
    _ask_layouts(asked)
    groups = [*_ask_groups(questions, asked.demand_dropped), *_ask_groups(questions, asked.demand_relaxed)]
    by_limit = {(change.spec.what, change.spec.model): item for change, item in asked.demand_dropped}
    for change, eased in asked.demand_relaxed:
        # The link is shared by all models: without transfers of one model it is as slow for the others.
        dropped = by_limit.get((change.spec.what, change.spec.model))
        if dropped is not None:
            questions.pairs.append((eased, dropped))
            questions.limits.append((eased, dropped))
    asked.sharing = Question(
        replace(other_sharing(plain), objective=first_level_objective(plain.objective)),
        request.sharing == "exclusive",
        1,
        # Shares take long; whole slices are found at once, and nothing else bounds them from below.
        order=LAST if request.sharing == "exclusive" else FIRST,
    )
    questions.add(asked.sharing)
    for _, item in (*asked.gpu_added, *asked.gpu_removed):
        settling.bound(item)
    for item in groups:
        settling.bound(item)
    for _, added in asked.gpu_added:
        # Whether capacity binds a model is a question of its own level.
        added.whole = True
    questions.spread()
    return asked


def _ask_groups(questions: Questions, single: Sequence[tuple[Change, Question]]) -> list[Question]:
    """Questions that bound several at once: all changes together, and some of them."""
    if len(single) < 2:
        return []
    groups: list[Question] = []
    for size in (len(single), GROUP_SIZE)[: 1 + (len(single) >= 2 * GROUP_SIZE)]:
        for first in range(0, len(single), size):
            members = single[first : first + size]
            request = apply_all([change for change, _ in members], questions.plan.request)
            group = Question(
                request, True, questions.plan.level_count, members=tuple(item for _, item in members)
            )
            questions.add(group)
            questions.pairs += [(item, group) for _, item in members]
            groups.append(group)
    questions.pairs += [(group, groups[0]) for group in groups[1:]]
    return groups


def _ask_layouts(asked: _Asked) -> None:
    """The plan with each unused layout on one GPU; without that GPU it is a plan of fewer."""
    request, outcome, questions = asked.request, asked.outcome, asked.settling.questions
    asked.layouts = unused_layouts(request, outcome, asked.settling.relaxation)
    fewer_of = {change.spec.gpu_id: fewer for change, fewer in asked.gpu_removed}
    plain, level_count = questions.plan.request, questions.plan.level_count
    for item in asked.layouts:
        if not item.open:
            continue
        fleet, index = plain, item.index
        if goal_of(request).by_cost:
            # An idle GPU would take the layout and prove nothing, so only GPUs in use count.
            working = [number for number, gpu in enumerate(outcome.gpus) if gpu.used]
            fleet, index = only_gpus(plain, working), working.index(item.index)
        change = force_layout(fleet, item.gpu, index, item.reason.layout)
        trial = questions.add(Question(change.apply(fleet), False, level_count))
        if fleet is plain and item.gpu.id in fewer_of:
            fewer = fewer_of[item.gpu.id]
            questions.pairs.append((fewer, trial))
            # A plan without the GPU is one with each of the layouts on it.
            fewer.order = FIRST
        elif fleet is plain:
            trial.take_plan(levels_without_gpus(request, outcome.gpus, (index,))[:level_count])
        asked.trials.append((item, change, trial))


def _build_explanation(asked: _Asked, begun: float) -> PlanExplanation:
    """The explanation from the answers."""
    rank_of = level_ranks(asked.request, asked.outcome)
    negated = goal_of(asked.request).minimised
    before = asked.settling.questions.plan.levels() or Levels(asked.settling.questions.plan.lower)

    def answer(change: Change, question: Question) -> tuple[ChangeEffect, LevelComparison]:
        comparison = compare_levels(before, question.levels(), relaxes=question.relaxes)
        shown_level = rank_of.get(change.spec.model or "", 0) if len(before.values) > 1 else 0
        return with_comparison(change.spec, comparison, before, shown_level, negated=negated), comparison

    capacity = [answer(*item) for item in asked.gpu_added]
    limits = [answer(*item) for item in asked.demand_dropped]
    changes = (
        *(change for change, _ in capacity),
        *(answer(*item)[0] for item in (*asked.gpu_removed, *asked.demand_relaxed)),
    )
    trials = {
        (item.gpu, item.reason.layout): answer(change, question)[0] for item, change, question in asked.trials
    }
    reasons = tuple(
        _layout_reason(item, trials.get((item.gpu, item.reason.layout))) for item in asked.layouts
    )
    engines = tuple(
        reason if change is None or item is None else _engine_reason(reason, answer(change, item)[0])
        for reason, change, item in asked.places
    )
    effects = [*changes, *(change for change, _ in limits)]
    effects += [item.trial for item in reasons if item.trial]
    effects += [item.trial for item in engines if item.trial]
    eased = [answer(*item) for item in asked.demand_relaxed if item[0].spec.what in ENGINE_LIMITS]
    models = model_bindings(asked.request, asked.outcome, before, capacity, [*limits, *eased])
    complete = bool(capacity) and all(item.effect not in UNSETTLED for item in effects)
    complete &= all(limit.binds is not None for model in models for limit in model.limits)
    steps: tuple[PriceStep, ...] = ()
    if asked.sharing is not None:
        steps = price_steps(asked.outcome, before, asked.settling.relaxation, asked.sharing)
    return PlanExplanation(
        models,
        changes,
        reasons,
        steps,
        time.perf_counter() - begun,
        complete
        and "not_examined" not in {item.reason for item in reasons} | {item.reason for item in engines},
        engines,
    )


def _engine_reason(reason: EngineReason, trial: ChangeEffect) -> EngineReason:
    if trial.effect == "not_examined":
        return reason
    return replace(reason, reason="in_plan" if reason.engines else "tried", trial=trial)


def _layout_reason(item: UnusedLayout, trial: ChangeEffect | None) -> LayoutReason:
    if trial is None or trial.effect == "not_examined":
        return item.reason
    return replace(item.reason, reason="tried", trial=trial)
