"""Serves a plan on this host and measures it under load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchsplit_core import extras
from torchsplit_core.serving.settings import LoadSettings, ReadyServer, ServeSettings
from torchsplit_core.values import LlmPoints, PlanModel, PlanOutcome, PlanRequest, Progress, ignore_progress
from torchsplit_core.values.serving.measurement import Measurement
from torchsplit_core.values.simulation.request import Arrivals

if TYPE_CHECKING:
    from torchsplit_core.engine_plans.engine_figures import EngineRequests
    from torchsplit_core.serving.llm_engine.settings import LlmEngineSettings


def serve(
    outcome: PlanOutcome,
    request: PlanRequest,
    settings: ServeSettings,
    *,
    progress: Progress = ignore_progress,
    ready: Path | None = None,
    announce: Callable[[ReadyServer], None] = lambda serving: None,
) -> None:
    """Serve the plan until SIGTERM or SIGINT; see `serving.front.server.serve`. Raises InputFault."""
    extras.require_extra("serve")
    from torchsplit_core.serving.frontend.server import serve as run

    run(outcome, request, settings, progress=progress, ready=ready, announce=announce)


def profile_llm(
    settings: LlmEngineSettings,
    requests: EngineRequests,
    core_counts: Sequence[int],
    seconds: float,
    progress: Progress = ignore_progress,
) -> LlmPoints:
    """Measure an LLM's engine on numbers of cores; see `serving.load_test.llm_point`. Raises InputFault."""
    extras.require_extra("llm")
    from torchsplit_core.serving.load_test.llm_point import measure_points

    return measure_points(settings, requests, core_counts, seconds, progress)


def with_front_costs(
    root: Path,
    outcome: PlanOutcome,
    request: PlanRequest,
    *,
    measure: bool = False,
    progress: Progress = ignore_progress,
) -> PlanRequest:
    """The request with this host's frontend costs, if the plan uses cores and the request lacks them.

    Reads them from the store's folder `root`; if they are not there, `measure` measures them. Raises InputFault if
    that fails.
    """
    from torchsplit_core.latency_slo.frontend import uses_cpu_slices
    from torchsplit_core.serving.load_test.frontend_costs import front_costs, saved_costs

    if request.front is not None or not uses_cpu_slices(outcome):
        return request
    return replace(request, front=front_costs(root, progress) if measure else saved_costs(root))


def front_words(outcome: PlanOutcome, request: PlanRequest) -> str:
    """Text on the demand that exceeds the frontend's capacity; empty if none does or the capacity is unknown."""
    from torchsplit_core.latency_slo.frontend import describe_shortfall, frontend_load

    load = frontend_load(request, outcome)
    return "" if load is None else describe_shortfall(load)


def measure(
    outcome: PlanOutcome,
    request: PlanRequest,
    settings: ServeSettings,
    load: LoadSettings | None = None,
    *,
    arrivals: Callable[[PlanModel], Arrivals] = lambda model: model.expected_arrivals,
    progress: Progress = ignore_progress,
    on_sample: Callable[[dict[str, Any]], None] = lambda moment: None,
) -> Measurement:
    """Serve the plan, send load, compare; see `serving.load.measure.measure`. Raises InputFault."""
    extras.require_extra("serve")
    from torchsplit_core.serving.load_test.measurement import measure as run

    return run(outcome, request, settings, load, arrivals=arrivals, progress=progress, on_progress=on_sample)
