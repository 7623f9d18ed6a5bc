"""Trace, partition, plan and place as plain functions for command line, jobs and pages.

Heavy packages are imported where they are used, so that planning starts without torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from torchsplit_core.telemetry import schema, span
from torchsplit_core.values import (
    PartitionOutcome,
    PlacementFrontier,
    PlacementOutcome,
    PlacementRequest,
    PlanOutcome,
    PlanRequest,
    Profile,
    Progress,
    ignore_progress,
)
from torchsplit_core.values.partition import Objective as PartitionObjective

if TYPE_CHECKING:
    from torchsplit_core.graph.torch_graph import TorchGraph
    from torchsplit_core.placement.alternatives import Alternative
    from torchsplit_core.placement.comparison import ComparedMethod
    from torchsplit_core.planning.explanation.changes import EngineQuestions


def trace(source: str, *, trust: bool = False, progress: Progress = ignore_progress) -> TorchGraph:
    """Export a model in a limited child process. Raises InputFault if that fails."""
    from torchsplit_core.tracing import trace as trace_source

    with span(schema.TRACE, model=source) as active:
        graph = trace_source(source, trust=trust, progress=progress)
        active.set(nodes=len(graph.nodes), architecture_hash=graph.architecture_hash)
    return graph


def drawing(
    graph: TorchGraph,
    suffix: str,
    what: Any = "dataflow",
    opened: tuple[str, ...] = (),
    *,
    dark: bool = False,
    without: tuple[str, ...] = (),
) -> str:
    """A graph as the text of a .svg or .dot file, see `drawing.export.drawing`. Raises InputFault."""
    from torchsplit_core.drawing.export import render_drawing as make

    return make(graph, suffix, what, opened, dark=dark, without=without)


def partition(
    source: str,
    profile: Profile,
    *,
    graph: TorchGraph | None = None,
    stages: int = 2,
    top_k: int = 5,
    pareto: bool = False,
    link_gb_per_s: float | None = None,
    memory_bytes: int | None = None,
    objective: PartitionObjective = "throughput",
    time_factors: tuple[float, ...] | None = None,
    time_limit_s: float = 60.0,
    trust: bool = False,
    progress: Progress = ignore_progress,
) -> PartitionOutcome:
    """Ranked cuts of a model into at most `stages` parts. Raises InputFault if profile and model differ.

    With `pareto` the candidates are the Pareto front over load (or latency), bytes across cuts and peak memory, of
    1 to `stages` parts; `top_k` is then ignored.
    """
    from torchsplit_core.checkpoints.trained_run import with_step
    from torchsplit_core.partitioning import PartitionProvider, pareto_candidates

    source = with_step(source)
    graph, rest = _trace_if_needed(source, graph, trust, progress)
    with span(schema.PARTITION, model=source, stages=stages, nodes=len(graph.nodes)) as active:
        provider = PartitionProvider(graph, profile)
        if pareto:
            outcome = pareto_candidates(
                provider,
                stages=(stages,) if time_factors else range(1, stages + 1),
                link_gb_per_s=link_gb_per_s,
                memory_bytes=memory_bytes,
                time_limit_s=time_limit_s,
                objective=objective,
                time_factors=time_factors,
                progress=rest,
            ).combined
        else:
            request = provider.request(
                stages, top_k, link_gb_per_s, memory_bytes, time_limit_s, objective, time_factors
            )
            outcome = provider.solve(request, rest)
        active.set(candidates=len(outcome.candidates), status=outcome.status, gap=outcome.gap)
    return replace(outcome, source=source)


def _trace_if_needed(
    source: str, graph: TorchGraph | None, trust: bool, progress: Progress
) -> tuple[TorchGraph, Progress]:
    """The graph, traced if none is given, and the progress callback for the work that follows."""
    if graph is not None:
        return graph, progress
    traced = trace(source, trust=trust, progress=lambda share, text: progress(0.3 * share, text))
    return traced, lambda share, text: progress(0.3 + 0.7 * share, text)


def own_partition(
    source: str,
    profile: Profile,
    behind: Sequence[str],
    *,
    graph: TorchGraph | None = None,
    link_gb_per_s: float | None = None,
    objective: PartitionObjective = "throughput",
    time_factors: tuple[float, ...] | None = None,
    time_limit_s: float = 60.0,
    trust: bool = False,
    progress: Progress = ignore_progress,
) -> PartitionOutcome:
    """The cut behind these values of the graph, with the bound of the best cut into as many stages.

    Raises InputFault for a value that cannot end a stage, and if profile and model differ.
    """
    from torchsplit_core.checkpoints.trained_run import with_step
    from torchsplit_core.partitioning import PartitionProvider, cut_behind
    from torchsplit_core.partitioning.candidates import replace_candidates

    source = with_step(source)
    graph, rest = _trace_if_needed(source, graph, trust, progress)
    provider = PartitionProvider(graph, profile)
    candidate = cut_behind(
        provider, behind, link_gb_per_s=link_gb_per_s, objective=objective, time_factors=time_factors
    )
    stages = len(time_factors) if time_factors else len(candidate.stages)
    request = provider.request(stages, 1, link_gb_per_s, None, time_limit_s, objective, time_factors)
    return replace(replace_candidates(provider.solve(request, rest), (candidate,)), source=source)


def with_engine_points(request: PlanRequest, progress: Progress = ignore_progress) -> PlanRequest:
    """The request with the engines of its LLMs as points, see `engine_plans.points`; the same one without LLMs."""
    if all(model.llm is None for model in request.models):
        return request
    from torchsplit_core.engine_plans.points import with_engine_points as resolve

    return resolve(request, progress)


def engine_questions(resolved: PlanRequest, outcome: PlanOutcome) -> EngineQuestions:
    """What an explanation asks of the LLMs of a request that has their points."""
    from torchsplit_core.engine_plans.explained_engines import engine_questions as ask
    from torchsplit_core.planning.explanation.changes import EngineQuestions

    return ask(resolved, outcome) if any(model.llm for model in resolved.models) else EngineQuestions()


def plan(
    request: PlanRequest,
    *,
    explain: bool = False,
    progress: Progress = ignore_progress,
    on_plan: Callable[[PlanOutcome], None] | None = None,
) -> PlanOutcome:
    """The verified outcome of a plan request. Raises InputFault for an invalid request.

    Invalid are also the objective of fewest GPUs without any minimum, and a fleet on which no model has figures or may
    run. Under response-time limits it is simulated, see `latency_slo.slo_planner`. If the request has frontend costs,
    the outcome says how much of the demand the frontend carries, see `latency_slo.frontend`.
    `explain` adds what binds each model, what changes would bring and why no other layout is better.
    `on_plan` gets verified plans during the search, see `planner.plan`; none under response-time limits.
    """
    from torchsplit_core.latency_slo.frontend import with_frontend
    from torchsplit_core.latency_slo.slo_planner import has_response_limit, plan_with_slo
    from torchsplit_core.planning import plan as plain
    from torchsplit_core.planning.problem.build import check_admissible
    from torchsplit_core.planning.request.coverage import check_figures
    from torchsplit_core.planning.request.objective import reads_samples
    from torchsplit_core.planning.request.validate import check_minima, validate

    check_minima(request)
    validate(request)
    solve: Callable[..., PlanOutcome] = plan_with_slo
    if not has_response_limit(request):
        solve = partial(plain, on_plan=on_plan and (lambda first: on_plan(with_frontend(request, first))))
    if any(model.llm is not None for model in request.models):
        from torchsplit_core.engine_plans.engine_planner import plan_with_engines

        # Whether engines keep their limits together is known of a whole plan alone: none is shown on the way.
        solve = partial(plan_with_engines, planner=plan_with_slo if has_response_limit(request) else plain)
        request = with_engine_points(request, lambda share, text: progress(0.3 * share, text))
    check_figures(request)
    search_share = 0.7 if explain else 1.0
    with span(
        schema.PLAN, models=len(request.models), gpus=sum(entry.count for entry in request.gpus)
    ) as active:
        outcome = with_frontend(
            request, solve(request, progress=lambda share, text: progress(search_share * share, text))
        )
        active.set(status=outcome.status, gap=outcome.objective.gap)
    if outcome.objective.value is not None and not any(model.throughput_rps for model in outcome.models):
        # A plan that can serve no model would otherwise be reported as optimal.
        check_admissible(request)
    if not explain:
        return outcome
    if reads_samples(request):
        words = "Not explained: the objective is of demand samples, not of one demand."
        return replace(outcome, warnings=(*outcome.warnings, words))
    from torchsplit_core.planning.explanation.explain import explain_plan

    explanation = explain_plan(
        request,
        outcome,
        engines=engine_questions(request, outcome),
        progress=lambda share, text: progress(0.7 + 0.3 * share, text),
    )
    if explanation is not None and has_response_limit(request):
        warnings = (*outcome.warnings, "The explanation leaves waiting out: it is of service times alone.")
        outcome = replace(outcome, warnings=warnings)
    if explanation is not None and explanation.engines:
        text = "The explanation plans with each engine's own rate; together a model's engines may carry less."
        outcome = replace(outcome, warnings=(*outcome.warnings, text))
    return replace(outcome, explanation=explanation)


def place(
    request: PlacementRequest,
    *,
    warm_start: PlacementOutcome | None = None,
    progress: Progress = ignore_progress,
) -> PlacementOutcome:
    """The verified outcome of a placement request. Raises InputFault for an invalid request.

    warm_start: an earlier outcome of a similar request; its pipeline is tried first if it still fits.
    """
    from torchsplit_core.placement import place as solve

    with span(schema.PLACE, gpus=len(request.gpus), layers=request.model.layers) as active:
        outcome = solve(request, warm_start=warm_start, progress=progress)
        active.set(status=outcome.status, gap=outcome.gap, segments=len(outcome.segments))
    return outcome


def placement_frontier(
    request: PlacementRequest, *, progress: Progress = ignore_progress
) -> PlacementFrontier:
    """Throughput against latency of one pipeline, verified. Raises InputFault for an invalid request."""
    from torchsplit_core.placement.frontier import frontier

    return frontier(request, progress=progress)


def placement_alternatives(
    request: PlacementRequest, fleet: str, *, progress: Progress = ignore_progress
) -> tuple[Alternative, ...]:
    """Outcomes of other settings on the request's nodes. Raises InputFault as `place` does."""
    from torchsplit_core.placement.alternatives import alternatives
    from torchsplit_core.placement.request.fleets import parse_nodes

    return alternatives(request, max(nodes.gpus for nodes in parse_nodes(fleet)), progress=progress)


def compare_placements(
    request: PlacementRequest, *, progress: Progress = ignore_progress
) -> tuple[ComparedMethod, ...]:
    """Compare three solvers on a placement. Raises InputFault for an invalid request."""
    from torchsplit_core.placement.comparison import compare

    return compare(request, progress=progress)


def literal_size(request: PlacementRequest) -> str:
    """The size of the published program for a request, in words, without building it. Raises InputFault."""
    from torchsplit_core.placement.comparison import describe_literal_size

    return describe_literal_size(request)


def placement_request(model: str, fleet: str, **options: Any) -> PlacementRequest:
    """A request from a config.json or decoder name and nodes; see `placement.build_request`. Raises InputFault."""
    from torchsplit_core.placement.request.build import build_request

    return build_request(model, fleet, **options)
