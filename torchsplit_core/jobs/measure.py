"""Serves a scenario's plan on this host under load, as a job of a workspace."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torchsplit_core import workflow
from torchsplit_core.hardware import available_devices, discover_host
from torchsplit_core.isolation.trust_policy import require_execution_allowed
from torchsplit_core.jobs.job_kinds import MeasureParameters
from torchsplit_core.jobs.live_runs import LiveRunFile
from torchsplit_core.jobs.trace import local_source
from torchsplit_core.latency_slo.service_variance import with_lognormal_service
from torchsplit_core.latency_slo.simulation_input import without_instance
from torchsplit_core.serving.load_test.llm_load import without_llms
from torchsplit_core.serving.plan import is_runnable
from torchsplit_core.serving.settings import LoadSettings, ServeSettings
from torchsplit_core.values import InputFault, PlanOutcome, PlanRequest, Progress, quoted
from torchsplit_core.values.serving.measurement import Measurement
from torchsplit_core.workspace.measured_points import exclusive_measurement

if TYPE_CHECKING:
    from torchsplit_core.workspace.store import Workspace

PREVIEW_REQUESTS = 5_000
"""Requests per model simulated before the run, for the predicted lines in its charts."""


def measure_job(workspace: Workspace, parameters: MeasureParameters, progress: Progress) -> dict[str, Any]:
    """Serve the stored plan under load; the measurement is stored under the plan's name.

    Raises InputFault if it cannot be served, and for a model's file that is gone or not trusted as it is now.
    """
    name = parameters.request
    request: PlanRequest = workspace.get("plan_request", name)
    outcome: PlanOutcome = workspace.get("plan", name)
    live = LiveRunFile(workspace, name)
    (device,) = available_devices(discover_host())[:1]
    with (
        exclusive_measurement(workspace.store, device, progress),
        local_model_sources(workspace, outcome, request, parameters) as (local_request, trust),
    ):
        try:
            if not parameters.stand_in:
                front_costs = workflow.with_front_costs(
                    workspace.store.root, outcome, request, measure=True, progress=progress
                ).front
                request, local_request = (
                    replace(request, front=front_costs),
                    replace(local_request, front=front_costs),
                )
            live.begin(expected_results(outcome, request, parameters.load))
            measurement = workflow.measure(
                outcome,
                local_request,
                ServeSettings(port=0, stand_in="cpu" if parameters.stand_in else "none", trust=trust),
                LoadSettings(parameters.duration_s, parameters.load),
                progress=progress,
                on_sample=live.add,
            )
        finally:
            live.end()
    workspace.put("measurement", name, _mark_stand_ins(measurement, parameters))
    return {"measurement": name, "disagreements": len(measurement.disagreements)}


@contextlib.contextmanager
def local_model_sources(
    workspace: Workspace, outcome: PlanOutcome, request: PlanRequest, parameters: MeasureParameters
) -> Iterator[tuple[PlanRequest, bool]]:
    """Yield the request with sources as workers load them, and whether all of them are trusted to be executed.

    Uploads exist as files inside the `with` block. Raises InputFault for a source that is neither a sample nor
    an upload, and for a file that is gone or not trusted as it is now.
    """
    unserved = without_instance(outcome, request)
    with contextlib.ExitStack() as stack:
        local_paths: dict[str, str] = {}
        models = []
        for model in request.models:
            source = parameters.in_place.get(model.name, model.source)
            # An engine of an LLM loads its folder itself; nothing of it is executed.
            if model.llm is None and model.name not in unserved and is_runnable(source):
                if source not in local_paths:
                    local_paths[source] = stack.enter_context(_local_file(workspace, source, parameters))
                source = local_paths[source]
            models.append(replace(model, source=source))
        yield (
            replace(request, models=tuple(models)),
            any(source in parameters.uploads for source in local_paths),
        )


@contextlib.contextmanager
def _local_file(workspace: Workspace, source: str, parameters: MeasureParameters) -> Iterator[str]:
    file = parameters.uploads.get(source)
    with local_source(workspace, source, file) as (text, trust):
        if file is not None and not trust:
            require_execution_allowed(file.upload)
            raise InputFault(
                "upload",
                f"{quoted(file.upload)} is not trusted, and a model that is served is executed",
                "Tick the box of trust beside the plan, and run it again.",
            )
        yield text


def _mark_stand_ins(measurement: Measurement, parameters: MeasureParameters) -> Measurement:
    """Mark the models that another source ran for: their measured batches are no points of the plan's models."""
    in_place = {
        model.name: parameters.in_place[model.name]
        for model in measurement.models
        if model.name in parameters.in_place
    }
    points = tuple(point for point in measurement.points if point.model not in in_place)
    return replace(measurement, points=points, in_place=in_place)


def expected_results(outcome: PlanOutcome, request: PlanRequest, load: float) -> dict[str, Any]:
    """By batch model, the rate that the plan predicts and the p95 of a short simulation (null if none)."""
    outcome, request = without_llms(outcome, request)
    if not request.models:
        return {"expected": {}}
    plan_simulation = with_lognormal_service(workflow.simulation_request(outcome, request), outcome, request)
    simulation = workflow.under_load(plan_simulation, load)
    outcome_under_load = workflow.simulate(
        replace(simulation, requests_per_model=PREVIEW_REQUESTS, replications=1)
    )
    planned = {model.name: model.throughput_rps for model in outcome.models}
    return {
        "expected": {
            model.name: {
                "rate_rps": min(model.offered_rps or 0.0, planned[model.name]),
                "p95_ms": model.response_ms.p95,
            }
            for model in outcome_under_load.models
        }
    }
