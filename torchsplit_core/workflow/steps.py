"""Trace, profile, partition, request, plan, place and deploy as plain functions: what command line and page call.

The heavy rooms are imported where they are used, so that planning starts without torch.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchsplit_core.jobs.names import (
    PartitionParameters,
    ProfileParameters,
    QuickStartParameters,
    RequestParameters,
    TraceParameters,
)
from torchsplit_core.jobs.profile import local_source, profile_job
from torchsplit_core.telemetry import schema, span
from torchsplit_core.values import (
    FleetEntry,
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
from torchsplit_core.workflow.profiling import DEFAULT_BATCH_SIZES, profile
from torchsplit_core.workspace.named import exists, partition_name, partition_names, put_answer

if TYPE_CHECKING:
    from torchsplit_core.graph.torch_graph import TorchGraph
    from torchsplit_core.workspace.store import Workspace

__all__ = [
    "DEFAULT_BATCH_SIZES",
    "deploy",
    "drawing",
    "explain_job",
    "measured_mix",
    "own_partition",
    "partition",
    "partition_job",
    "place",
    "place_job",
    "placement_frontier",
    "placement_frontier_job",
    "placement_request",
    "plan",
    "plan_job",
    "profile",
    "profile_job",
    "samples_job",
    "trace",
    "trace_job",
]

DOOR_SAMPLES = ("sample:clip@large", "sample:bert@large", "sample:fastpitch@large", "sample:ocr@large")
"""The models of the dashboard's second door."""
DOOR_DEMAND_RPS = 100.0
"""What the second door asks for each sample model until the user says otherwise."""
DOOR_LATENCY_MS = 200.0
"""And the longest one batch may take: without a limit the planner would take the largest batch for little more."""
EXPLAIN_JOB_S = 20.0
"""Seconds a page spends on the explanation of a plan: it shows how far it is, and can be cancelled."""
FIRST_LOOK_S = 0.5
"""Seconds after which a page gets a verified plan; its proof follows."""


def trace(source: str, *, trust: bool = False, progress: Progress = ignore_progress) -> TorchGraph:
    """Export a model in a limited child process. Raises InputFault where that fails."""
    from torchsplit_core.tracing import trace as trace_source

    with span(schema.TRACE, model=source) as told:
        graph = trace_source(source, trust=trust, progress=progress)
        told.set(nodes=len(graph.nodes), architecture_hash=graph.architecture_hash)
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
    from torchsplit_core.drawing.export import drawing as make

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
    """Ranked cuts of a model into at most `stages` parts. Raises InputFault where profile and model differ.

    With `pareto` the candidates are those of 1 to `stages` parts that no other beats in load (or
    latency), bytes across cuts and peak memory; `top_k` then does not count.
    """
    from torchsplit_core.partitioning import PartitionProvider, pareto_candidates

    graph, rest = _traced(source, graph, trust, progress)
    with span(schema.PARTITION, model=source, stages=stages, nodes=len(graph.nodes)) as told:
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
            ).as_one
        else:
            request = provider.request(
                stages, top_k, link_gb_per_s, memory_bytes, time_limit_s, objective, time_factors
            )
            outcome = provider.solve(request, rest)
        told.set(candidates=len(outcome.candidates), status=outcome.status, gap=outcome.gap)
    return replace(outcome, source=source)


def _traced(
    source: str, graph: TorchGraph | None, trust: bool, progress: Progress
) -> tuple[TorchGraph, Progress]:
    """The graph, traced where none is given, and what tells the progress of the work on it."""
    if graph is not None:
        return graph, progress
    made = trace(source, trust=trust, progress=lambda share, text: progress(0.3 * share, text))
    return made, lambda share, text: progress(0.3 + 0.7 * share, text)


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
    """The cut behind these values of the graph, beside the bound of the best into as many stages.

    Raises InputFault for a value that cannot end a stage, and where profile and model differ.
    """
    from torchsplit_core.partitioning import PartitionProvider, cut_behind
    from torchsplit_core.partitioning.candidates import with_best

    graph, rest = _traced(source, graph, trust, progress)
    provider = PartitionProvider(graph, profile)
    own = cut_behind(
        provider, behind, link_gb_per_s=link_gb_per_s, objective=objective, time_factors=time_factors
    )
    stages = len(time_factors) if time_factors else len(own.stages)
    request = provider.request(stages, 1, link_gb_per_s, None, time_limit_s, objective, time_factors)
    return replace(with_best(provider.solve(request, rest), (own,)), source=source)


def plan(request: PlanRequest, *, explain: bool = False, progress: Progress = ignore_progress) -> PlanOutcome:
    """The verified outcome of a plan request. Raises InputFault for a request that makes no sense.

    `explain` adds to a plan what binds each model, what changes would bring and why no other layout.
    """
    from torchsplit_core.planning import plan as solve

    whole = 0.7 if explain else 1.0
    with span(
        schema.PLAN, models=len(request.models), gpus=sum(entry.count for entry in request.gpus)
    ) as told:
        outcome = solve(request, progress=lambda share, text: progress(whole * share, text))
        told.set(status=outcome.status, gap=outcome.objective.gap)
    if not explain:
        return outcome
    from torchsplit_core.planning.explanation.explain import explain_plan

    found = explain_plan(request, outcome, progress=lambda share, text: progress(0.7 + 0.3 * share, text))
    return replace(outcome, explanation=found)


def place(
    request: PlacementRequest,
    *,
    start: PlacementOutcome | None = None,
    progress: Progress = ignore_progress,
) -> PlacementOutcome:
    """The verified outcome of a placement request. Raises InputFault for a request that makes no sense.

    start: an earlier outcome, of a similar request, whose pipeline is tried first where it still fits.
    """
    from torchsplit_core.placement import place as solve

    with span(schema.PLACE, gpus=len(request.gpus), layers=request.model.layers) as told:
        outcome = solve(request, start=start, progress=progress)
        told.set(status=outcome.status, gap=outcome.gap, segments=len(outcome.segments))
    return outcome


def placement_frontier(
    request: PlacementRequest, *, progress: Progress = ignore_progress
) -> PlacementFrontier:
    """Throughput against latency of one pipeline, verified. Raises InputFault for a request that makes no sense."""
    from torchsplit_core.placement.frontier import frontier

    return frontier(request, progress=progress)


def placement_request(model: str, fleet: str, **options: Any) -> PlacementRequest:
    """A request from a config.json or a decoder's name and nodes, see `placement.build_request`. Raises InputFault."""
    from torchsplit_core.placement.request.build import build_request

    return build_request(model, fleet, **options)


def deploy(outcome: PlanOutcome, directory: Path, formats: Sequence[str] | None = None) -> tuple[Path, ...]:
    """Write the plan's deployment files. Raises InputFault for an unknown format or a plan without slices."""
    from torchsplit_core.deployment import FORMATS, write_deployment
    from torchsplit_core.deployment import deploy as make

    return tuple(write_deployment(make(outcome, tuple(formats or FORMATS)), directory))


# What jobs run: (workspace, parameters, progress) -> JSON


def trace_job(workspace: Workspace, parameters: TraceParameters, progress: Progress) -> dict[str, Any]:
    """Trace the source into the workspace."""
    name = parameters.source
    with local_source(workspace, name, parameters.file) as (source, trust):
        graph = trace(source, trust=trust, progress=progress)
    workspace.put("graph", name, graph)
    return {"graph": name, "nodes": len(graph.nodes)}


def partition_job(
    workspace: Workspace, parameters: PartitionParameters, progress: Progress
) -> dict[str, Any]:
    """Cut a traced and profiled model of the workspace into 1 to so many parts, stored by their number.

    The outcomes of one model are always of one study: the same link, memory, objective and speeds. What an
    earlier study stored goes.
    """
    from torchsplit_core.partitioning import PartitionProvider, pareto_candidates

    name, factors = parameters.source, parameters.time_factors
    found = pareto_candidates(
        PartitionProvider(workspace.get("graph", name), workspace.get("profile", name)),
        stages=(len(factors),) if factors else range(1, parameters.stages + 1),
        link_gb_per_s=parameters.link_gb_per_s,
        memory_bytes=parameters.memory_bytes,
        time_limit_s=parameters.time_limit_s,
        objective=parameters.objective,
        time_factors=factors or None,
        progress=progress,
    )
    kept = {partition_name(name, count): outcome for count, outcome in found.outcomes.items()}
    for known in partition_names(workspace, name):
        if known not in kept:
            workspace.remove("partition", known)
    for title, outcome in kept.items():
        workspace.put("partition", title, replace(outcome, source=name))
    return {"partition": name, "parts": max(found.outcomes)}


def plan_job(workspace: Workspace, parameters: RequestParameters, progress: Progress) -> dict[str, Any]:
    """Plan the stored request: a verified first look in seconds, then the proof, both under its name."""
    from torchsplit_core.planning.request.hash import request_hash

    name = parameters.request
    request: PlanRequest = workspace.get("plan_request", name)
    digest = request_hash(request)
    limit = request.solver.time_limit_s
    quick = replace(request, solver=replace(request.solver, time_limit_s=min(FIRST_LOOK_S, limit)))
    progress(0.1, "looking for a first plan")
    outcome = replace(plan(quick), request_sha256=digest)
    if outcome.status not in ("optimal", "infeasible") and limit > FIRST_LOOK_S:
        # A first look that leaves a model without anything would mislead more than a moment's wait.
        shown = outcome.status == "feasible" and outcome.objective.value != 0
        if shown:
            workspace.put("plan", name, outcome)
        progress(0.3, "a plan stands; proving that none is better" if shown else "looking for a fair plan")
        better = plan(request, progress=lambda share, text: progress(0.3 + 0.7 * share, text))
        if better.status != "timeout":
            outcome = better
    put_answer(workspace, name, request, outcome)
    return {"plan": name, "status": outcome.status}


def place_job(workspace: Workspace, parameters: RequestParameters, progress: Progress) -> dict[str, Any]:
    """Place the stored request; the outcome stands under its name, with the request it answers."""
    name = parameters.request
    request: PlacementRequest = workspace.get("placement_request", name)
    before = workspace.get("placement", name) if exists(workspace, "placement", name) else None
    outcome = place(request, start=before, progress=progress)
    put_answer(workspace, name, request, outcome)
    return {"placement": name, "status": outcome.status}


def placement_frontier_job(
    workspace: Workspace, parameters: RequestParameters, progress: Progress
) -> dict[str, Any]:
    """Throughput against latency of the stored request; the curve stands under its name."""
    name = parameters.request
    request: PlacementRequest = workspace.get("placement_request", name)
    curve = placement_frontier(request, progress=progress)
    put_answer(workspace, name, request, curve)
    return {"placement_frontier": name, "status": curve.status, "points": len(curve.points)}


def explain_job(workspace: Workspace, parameters: RequestParameters, progress: Progress) -> dict[str, Any]:
    """Explain the stored plan of the stored request; the plan gets the explanation under its name."""
    from torchsplit_core.planning.explanation.explain import explain_plan

    name = parameters.request
    request: PlanRequest = workspace.get("plan_request", name)
    outcome: PlanOutcome = workspace.get("plan", name)
    deadline = time.perf_counter() + EXPLAIN_JOB_S
    found = explain_plan(request, outcome, deadline, progress=progress)
    # A plan that was made while this ran is another plan: it keeps its place, unexplained.
    if found is not None and workspace.get("plan", name) == outcome:
        workspace.put("plan", name, replace(outcome, explanation=found))
    return {"plan": name, "complete": found is not None and found.complete}


def samples_job(workspace: Workspace, parameters: QuickStartParameters, progress: Progress) -> dict[str, Any]:
    """The second door: trace and profile the sources here, estimate the fleet, plan. Resumes what is stored."""
    from torchsplit_core.planning.request.build import build_request, model_name

    sources = parameters.sources or DOOR_SAMPLES
    fleet = tuple(FleetEntry(type=kind, count=count) for kind, count in parameters.gpus)
    profiles = []
    for number, source in enumerate(sources):

        def part(share: float, text: str, number: int = number, source: str = source) -> None:
            progress(0.9 * (number + share) / len(sources), f"{source.partition(':')[2]}: {text}")

        if exists(workspace, "profile", source):
            part(1.0, "already profiled")
        else:
            profile_job(workspace, ProfileParameters((source,), batch_sizes=(1, 2), point_budget_s=0.5), part)
        profiles.append(workspace.get("profile", source))
    name = parameters.name
    demands = {model_name(found): DOOR_DEMAND_RPS for found in profiles}
    limits = dict.fromkeys(demands, DOOR_LATENCY_MS)
    request = build_request(profiles, fleet, demands=demands, max_latencies=limits, time_limit_s=20.0)
    workspace.put("plan_request", name, request)
    workspace.set_setting("scenario", name)
    return plan_job(workspace, RequestParameters(name), lambda share, text: progress(0.9 + 0.1 * share, text))


def measured_mix(workspace: Workspace, gpus: int | None = None) -> str:
    """The first door: put the measured A100 mix into the workspace as a plan request; its name."""
    from torchsplit_core.profiling.library import library_profiles, mix_request

    name = "Measured A100 mix"
    for found in library_profiles():
        workspace.put("profile", found.source, found)
    workspace.put("plan_request", name, mix_request("S3", gpus))
    workspace.set_setting("scenario", name)
    return name
