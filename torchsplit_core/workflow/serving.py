"""A plan served on this host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torchsplit_core.serving.settings import ServeSettings, Serving
from torchsplit_core.values import PlanOutcome, PlanRequest, Progress, ignore_progress


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
