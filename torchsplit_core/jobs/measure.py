"""A scenario's plan served on this host and loaded, as a job of a workspace; and samples all the way to that."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torchsplit_core import workflow
from torchsplit_core.hardware import available_devices, discover_host
from torchsplit_core.isolation.execution import refuse_execution
from torchsplit_core.jobs.live_runs import LiveRun
from torchsplit_core.jobs.names import MeasureParameters
from torchsplit_core.jobs.trace import local_source
from torchsplit_core.responding.servers import without_instance
from torchsplit_core.responding.spread import with_spread
from torchsplit_core.serving.plan import is_runnable
from torchsplit_core.serving.settings import LoadSettings, ServeSettings
from torchsplit_core.values import InputFault, PlanOutcome, PlanRequest, Progress, quoted
from torchsplit_core.values.serving.measurement import Measurement
from torchsplit_core.workspace.measured_points import one_measurement

if TYPE_CHECKING:
    from torchsplit_core.workspace.store import Workspace

LOOKED_AHEAD = 5_000
"""Requests of each model simulated before the run, for the lines that are drawn into it."""


def measure_job(workspace: Workspace, parameters: MeasureParameters, progress: Progress) -> dict[str, Any]:
    """Serve and load the stored plan; the measurement gets its name.

    Raises InputFault where it cannot be served, and for a model's file that is gone or not trusted as it is now.
    """
    name = parameters.request
    request: PlanRequest = workspace.get("plan_request", name)
    outcome: PlanOutcome = workspace.get("plan", name)
    live = LiveRun(workspace, name)
    (device,) = available_devices(discover_host())[:1]
    with (
        one_measurement(workspace.store, device, progress),
        laid_out(workspace, outcome, request, parameters) as (here, trust),
    ):
        try:
            if not parameters.stand_in:
                costs = workflow.with_front_of(
                    workspace.store.root, outcome, request, measure=True, progress=progress
                ).front
                request, here = replace(request, front=costs), replace(here, front=costs)
            live.begin(expected(outcome, request, parameters.load))
            found = workflow.measure(
                outcome,
                here,
                ServeSettings(port=0, stand_in="cpu" if parameters.stand_in else "none", trust=trust),
                LoadSettings(parameters.duration_s, parameters.load),
                progress=progress,
                hear=live.add,
            )
        finally:
            live.end()
    workspace.put("measurement", name, _of_others(found, parameters))
    return {"measurement": name, "disagreements": len(found.disagreements)}


@contextlib.contextmanager
def laid_out(
    workspace: Workspace, outcome: PlanOutcome, request: PlanRequest, parameters: MeasureParameters
) -> Iterator[tuple[PlanRequest, bool]]:
    """The request with sources as workers load them, and whether these may be executed: all of them are trusted.

    Uploads are files for the time of the `with` block. Raises InputFault for a source that is neither a sample nor
    an upload, and for a file that is gone or not trusted as it is now.
    """
    idle = without_instance(outcome, request)
    with contextlib.ExitStack() as rooms:
        found: dict[str, str] = {}
        models = []
        for model in request.models:
            source = parameters.in_place.get(model.name, model.source)
            if model.name not in idle and is_runnable(source):
                if source not in found:
                    found[source] = rooms.enter_context(_file_of(workspace, source, parameters))
                source = found[source]
            models.append(replace(model, source=source))
        yield replace(request, models=tuple(models)), any(source in parameters.uploads for source in found)


@contextlib.contextmanager
def _file_of(workspace: Workspace, source: str, parameters: MeasureParameters) -> Iterator[str]:
    file = parameters.uploads.get(source)
    with local_source(workspace, source, file) as (text, trust):
        if file is not None and not trust:
            refuse_execution(file.upload)
            raise InputFault(
                "upload",
                f"{quoted(file.upload)} is not trusted, and a model that is served is executed",
                "Tick the box of trust beside the plan, and run it again.",
            )
        yield text


def _of_others(found: Measurement, parameters: MeasureParameters) -> Measurement:
    """The measurement, saying which models another ran for: their batches are no points of the plan's."""
    in_place = {
        one.name: parameters.in_place[one.name] for one in found.models if one.name in parameters.in_place
    }
    points = tuple(point for point in found.points if point.model not in in_place)
    return replace(found, points=points, in_place=in_place)


def expected(outcome: PlanOutcome, request: PlanRequest, load: float) -> dict[str, Any]:
    """By model the rate that the plan predicts and the p95 that a short simulation gives (null where none)."""
    plan = with_spread(workflow.simulation_request(outcome, request), outcome, request)
    asked = workflow.under_load(plan, load)
    found = workflow.simulate(replace(asked, requests_per_model=LOOKED_AHEAD, replications=1))
    planned = {model.name: model.throughput_rps for model in outcome.models}
    return {
        "expected": {
            model.name: {
                "rate_rps": min(model.offered_rps or 0.0, planned[model.name]),
                "p95_ms": model.response_ms.p95,
            }
            for model in found.models
        }
    }
