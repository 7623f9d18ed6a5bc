"""A scenario's plan served on this host and loaded, as a job of a workspace; and samples all the way to that."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torchsplit_core import workflow
from torchsplit_core.hardware import available_devices, discover_host
from torchsplit_core.jobs.live_runs import LiveRun
from torchsplit_core.jobs.names import MeasureParameters
from torchsplit_core.serving.settings import LoadSettings, ServeSettings
from torchsplit_core.values import InputFault, PlanOutcome, PlanRequest, Progress
from torchsplit_core.workspace.measured_points import one_measurement

if TYPE_CHECKING:
    from torchsplit_core.workspace.store import Workspace

LOOKED_AHEAD = 5_000
"""Requests of each model simulated before the run, for the lines that are drawn into it."""


def measure_job(workspace: Workspace, parameters: MeasureParameters, progress: Progress) -> dict[str, Any]:
    """Serve and load the stored plan; the measurement gets its name. Raises InputFault where it cannot be served."""
    name = parameters.request
    request: PlanRequest = workspace.get("plan_request", name)
    outcome: PlanOutcome = workspace.get("plan", name)
    for model in request.models:
        if model.source and not model.source.startswith(("sample:", "library:", "import:")):
            raise InputFault(
                f"models: {model.name}: source",
                model.source,
                "the page serves samples; a file of yours is served on the command line, where you say to trust it",
                "Download plan and request, and run torchsplit measure PLAN --request PLAN_REQUEST --trust.",
            )
    live = LiveRun(workspace, name)
    (device,) = available_devices(discover_host())[:1]
    with one_measurement(workspace.store, device, progress):
        try:
            live.begin(expected(outcome, request, parameters.load))
            found = workflow.measure(
                outcome,
                request,
                ServeSettings(port=0, stand_in="cpu" if parameters.stand_in else "none"),
                LoadSettings(parameters.duration_s, parameters.load),
                progress=progress,
                hear=live.add,
            )
        finally:
            live.end()
    workspace.put("measurement", name, found)
    return {"measurement": name, "disagreements": len(found.disagreements)}


def expected(outcome: PlanOutcome, request: PlanRequest, load: float) -> dict[str, Any]:
    """By model the rate that the plan predicts and the p95 that a short simulation gives (null where none)."""
    asked = workflow.under_load(workflow.simulation_request(outcome, request), load)
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
