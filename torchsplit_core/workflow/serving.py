"""A plan served on this host, and measured under load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchsplit_core.serving.settings import LoadSettings, ServeSettings, Serving
from torchsplit_core.values import PlanModel, PlanOutcome, PlanRequest, Progress, ignore_progress
from torchsplit_core.values.serving.measurement import Measurement
from torchsplit_core.values.simulation.request import Arrivals


def serve(
    outcome: PlanOutcome,
    request: PlanRequest,
    settings: ServeSettings,
    *,
    progress: Progress = ignore_progress,
    ready: Path | None = None,
    announce: Callable[[Serving], None] = lambda serving: None,
) -> None:
    """Serve the plan until SIGTERM or SIGINT; see `serving.front.server.serve`. Raises InputFault."""
    from torchsplit_core.serving.front.server import serve as run

    run(outcome, request, settings, progress=progress, ready=ready, announce=announce)


def measure(
    outcome: PlanOutcome,
    request: PlanRequest,
    settings: ServeSettings,
    load: LoadSettings | None = None,
    *,
    arrivals: Callable[[PlanModel], Arrivals] = lambda model: model.expected_arrivals,
    progress: Progress = ignore_progress,
    hear: Callable[[dict[str, Any]], None] = lambda moment: None,
) -> Measurement:
    """Serve the plan, load it, compare; see `serving.load.measure.measure`. Raises InputFault."""
    from torchsplit_core.serving.load.measure import measure as run

    return run(outcome, request, settings, load, arrivals=arrivals, progress=progress, hear=hear)
