"""A feasible plan explained: what binds each model, the effects of changes, why no other layout.

Every statement is the planner's answer to a changed request, compared with the plan level by level (outcome/levels).
What time does not suffice for is marked open or not examined.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from torchsplit_core.planning.explanation.binding_limits import bisect_effects, level_ranks, model_bindings
from torchsplit_core.planning.explanation.changes import (
    Change,
    add_gpu,
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
from torchsplit_core.planning.explanation.planner_process import (
    OutcomeCallback,
    PlannerProcess,
    ignore_outcome,
)
from torchsplit_core.planning.explanation.price_steps import price_steps
from torchsplit_core.planning.explanation.probes import SensitivityProbe
from torchsplit_core.planning.explanation.unused_layouts import UnusedLayout, unused_layouts
from torchsplit_core.planning.outcome.levels import Levels, outcome_levels
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
"""Seconds for an explanation, or the request's own time limit if shorter."""

RESERVE_S = 0.25
"""Most seconds reserved for what follows the last probe."""

MAX_LAYOUTS = 4
"""Layouts tried by planning with them, the most valuable first; more if time is left."""

UNSETTLED = ("open", "not_examined")


def explain_plan(
    request: PlanRequest,
    outcome: PlanOutcome,
    deadline: float | None = None,
    *,
    progress: Progress = ignore_progress,
    on_outcome: OutcomeCallback = ignore_outcome,
) -> PlanExplanation | None:
    """Explain a plan of the request until `deadline` (time.perf_counter; BUDGET_S from now by default).

    `on_outcome` gets every plan of a changed request. None for an outcome without a plan: an infeasible one carries its
    own reasons. Raises InputFault if the outcome answers another request.
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
    before = outcome_levels(outcome)
    if before is None or not before.feasible:
        return None
    if deadline is None:
        deadline = begun + min(BUDGET_S, request.solver.time_limit_s)
    # What follows the last probe needs time too.
    reserve = min(RESERVE_S, 0.1 * max(0.0, deadline - begun))
    with PlannerProcess(deadline - reserve, on_outcome) as planner:
        effort_s = outcome.statistics.build_s + outcome.statistics.solve_s
        results = _run_probes(SensitivityProbe(request, before, planner, effort_s), outcome, progress)
    return _build_explanation(results, begun)


@dataclass
class _ProbeResults:
    """The results so far."""

    probe: SensitivityProbe
    outcome: PlanOutcome
    layouts: list[UnusedLayout]
    gpu_added: list[tuple[Change, LevelComparison]] = field(default_factory=list)
    gpu_removed: list[tuple[Change, LevelComparison]] = field(default_factory=list)
    demand_dropped: list[tuple[Change, LevelComparison]] = field(default_factory=list)
    demand_relaxed: list[tuple[Change, LevelComparison]] = field(default_factory=list)
    trials: list[tuple[UnusedLayout, Change, LevelComparison]] = field(default_factory=list)
    steps: tuple[PriceStep, ...] = ()


def _run_probes(probe: SensitivityProbe, outcome: PlanOutcome, progress: Progress) -> _ProbeResults:
    """Every probe, the most useful to a reader first, so that what time leaves out matters least."""
    request, rank_of = probe.request, level_ranks(probe.request, outcome)
    relaxation = probe.bound(request)
    if relaxation is not None:
        probe.before = _tighten_bound(probe.before, relaxation.bound, negated=probe.negated)
    results = _ProbeResults(
        probe,
        outcome,
        unused_layouts(request, outcome, relaxation) if probe.planner.remaining_s else [],
    )
    open_layouts = [item for item in results.layouts if item.open]
    tried_layouts = open_layouts[:MAX_LAYOUTS]
    added, removed, relaxed = add_gpu(request), remove_gpu(request), relaxed_demand(request)
    # The worst-served models come first: readers ask about them most.
    dropped = sorted(without_demand(request), key=lambda change: rank_of.get(change.spec.model or "", 0))
    probe.expected_probes = len(added) + len(removed) + len(dropped) + len(relaxed) + len(tried_layouts) + 1
    progress(0.05, "What one more GPU would bring")
    results.gpu_added = [(change, probe.effect(change.apply, relaxes=True)) for change in added]
    progress(0.15, "What one GPU fewer would cost")
    for change, members in removed:
        if any(not outcome.gpus[index].used for index in members):
            # With one of them idle, the plan is also a plan of the smaller fleet.
            results.gpu_removed.append((change, compare_levels(probe.before, probe.before, relaxes=False)))
        else:
            results.gpu_removed.append((change, probe.effect(change.apply, relaxes=False)))
    progress(0.25, "What binds each model")
    results.demand_dropped = list(zip(dropped, bisect_effects(probe, dropped), strict=True))
    progress(0.5, "Why not another layout")
    results.trials = [(item, *_try_layout(probe, outcome, item)) for item in tried_layouts]
    progress(0.65, "What easing each demand would bring")
    _probe_relaxed(results, relaxed)
    progress(0.8, "The price of each step")
    results.steps = price_steps(probe, outcome, relaxation)
    progress(0.9, "A second look at what is still open")
    _probe_all_levels(results)
    remaining_layouts = open_layouts[MAX_LAYOUTS:]
    results.trials += [
        (item, *_try_layout(probe, outcome, item)) for item in remaining_layouts if probe.planner.remaining_s
    ]
    return results


def _probe_relaxed(results: _ProbeResults, relaxed: tuple[Change, ...]) -> None:
    """Demands relaxed by a tenth, and a faster link: a demand without effect when dropped has none when relaxed."""
    probe = results.probe
    effects = {(change.spec.what, change.spec.model): effect for change, effect in results.demand_dropped}
    for change in relaxed:
        dropped = effects.get((change.spec.what, change.spec.model))
        # The link is shared by all models: probes of single models do not cover it.
        effect = None if dropped is None else probe.implied_comparison(dropped)
        results.demand_relaxed.append((change, effect or probe.effect(change.apply, relaxes=True)))


def _probe_all_levels(results: _ProbeResults) -> None:
    """All levels, in the time left over, if only the first was planned."""
    probe = results.probe

    def repeat(entries: list[tuple[Change, LevelComparison]]) -> None:
        indices = [index for index, (_, effect) in enumerate(entries) if probe.is_first_level_only(effect)]
        if not indices or probe.planner.remaining_s < probe.effort_s:
            return
        comparisons = bisect_effects(probe, [entries[index][0] for index in indices], deep=True)
        for index, comparison in zip(indices, comparisons, strict=True):
            change, effect = entries[index]
            if comparison.effect not in UNSETTLED or (comparison.level or 0) > (effect.level or 0):
                entries[index] = change, comparison

    repeat(results.demand_dropped)
    repeat(results.gpu_added)
    settled = {(change.spec.what, change.spec.model): effect for change, effect in results.demand_dropped}
    for index, (change, _) in enumerate(results.demand_relaxed):
        dropped = settled.get((change.spec.what, change.spec.model))
        if dropped is not None and dropped.effect == "same":
            results.demand_relaxed[index] = change, dropped
    repeat(results.demand_relaxed)
    for index, (item, change, effect) in enumerate(results.trials):
        if probe.is_first_level_only(effect) and probe.planner.remaining_s > probe.effort_s:
            trial_comparison = probe.effect(change.apply, relaxes=False, deep=True)
            if trial_comparison.effect not in UNSETTLED:
                results.trials[index] = item, change, trial_comparison


def _build_explanation(results: _ProbeResults, begun: float) -> PlanExplanation:
    """The explanation from the results."""
    probe, rank_of = results.probe, level_ranks(results.probe.request, results.outcome)

    def describe_effect(change: Change, effect: LevelComparison) -> ChangeEffect:
        shown_level = rank_of.get(change.spec.model or "", 0) if len(probe.before.values) > 1 else 0
        return with_comparison(change.spec, effect, probe.before, shown_level, negated=probe.negated)

    capacity = [(describe_effect(change, effect), effect) for change, effect in results.gpu_added]
    limits = [(describe_effect(change, effect), effect) for change, effect in results.demand_dropped]
    changes = (
        *(change for change, _ in capacity),
        *(
            describe_effect(change, effect)
            for change, effect in (*results.gpu_removed, *results.demand_relaxed)
        ),
    )
    trials = {
        (item.gpu, item.reason.layout): describe_effect(change, effect)
        for item, change, effect in results.trials
    }
    reasons = tuple(
        _layout_reason(item, trials.get((item.gpu, item.reason.layout))) for item in results.layouts
    )
    effects = [*changes, *(change for change, _ in limits), *(r.trial for r in reasons if r.trial)]
    complete = bool(capacity) and all(item.effect not in UNSETTLED for item in effects)
    return PlanExplanation(
        model_bindings(probe.request, results.outcome, probe.before, capacity, limits),
        changes,
        reasons,
        results.steps,
        time.perf_counter() - begun,
        complete and all(reason.reason != "not_examined" for reason in reasons),
    )


def _tighten_bound(before: Levels, bound: float, *, negated: bool) -> Levels:
    """The plan's levels with the relaxation's bound, if the first level is not proven."""
    limit = -bound if negated else bound
    if before.proven or (before.bound is not None and before.bound <= limit):
        return before
    return replace(before, bound=max(limit, before.values[0]))


def _try_layout(
    probe: SensitivityProbe, outcome: PlanOutcome, item: UnusedLayout
) -> tuple[Change, LevelComparison]:
    """The plan with the layout on one GPU."""
    if not probe.negated:
        change = force_layout(probe.request, item.gpu, item.index, item.reason.layout)
        return change, probe.effect(change.apply, relaxes=False)
    # min_gpus: an idle GPU would take the layout and prove nothing, so only GPUs in use count.
    working = [index for index, gpu in enumerate(outcome.gpus) if gpu.used]
    smaller = only_gpus(probe.request, working)
    change = force_layout(smaller, item.gpu, working.index(item.index), item.reason.layout)
    levels = probe.first_level(change.apply(smaller), relaxes=False)
    return change, compare_levels(probe.before, levels, relaxes=False)


def _layout_reason(item: UnusedLayout, trial: ChangeEffect | None) -> LayoutReason:
    if trial is None or trial.effect == "not_examined":
        return item.reason
    return replace(item.reason, reason="tried", trial=trial)
