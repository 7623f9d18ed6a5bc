"""Serves a plan until the process is told to stop."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import uvloop

from torchsplit_core import extras
from torchsplit_core.files import replace_file
from torchsplit_core.isolation import private_temp_dir
from torchsplit_core.serving.device_binding import bind_slices
from torchsplit_core.serving.engine import Engine
from torchsplit_core.serving.frontend.app import Frontend
from torchsplit_core.serving.frontend.slice_locks import lock_devices
from torchsplit_core.serving.llm_frontend.app import EngineLink, LlmFrontend, PlanApplication
from torchsplit_core.serving.llm_frontend.engine_pool import EnginePool
from torchsplit_core.serving.metrics import ServerMetrics
from torchsplit_core.serving.part_export import export_parts
from torchsplit_core.serving.pinning import off_cores
from torchsplit_core.serving.plan import ServingPlan, check_engines_on_cores, plan_serving
from torchsplit_core.serving.protocol.access_guard import AccessGuard, load_tls_context
from torchsplit_core.serving.protocol.file_limits import raise_file_limit
from torchsplit_core.serving.protocol.http_server import HttpServer
from torchsplit_core.serving.protocol.listener import open_listener, stop_on_signal, url_of
from torchsplit_core.serving.settings import ReadyServer, ServeSettings, check_settings
from torchsplit_core.values import InputFault, PlanOutcome, PlanRequest, Progress, ignore_progress

RESTARTS = 5
"""Starts of a lost engine before it is given up."""
GRACE_S = 2
"""Time to write the last responses."""


def prepare_serving(outcome: PlanOutcome, request: PlanRequest, settings: ServeSettings) -> ServingPlan:
    """Check settings and plan before anything starts. Raises InputFault."""
    check_settings(settings)
    # What no host can run is said before what this one lacks.
    check_engines_on_cores(outcome)
    serving_plan = plan_serving(outcome, request, bind_slices(outcome, settings.stand_in))
    if serving_plan.engines:
        extras.require_extra("llm")
    return serving_plan


def reserve_slices(serving_plan: ServingPlan, settings: ServeSettings) -> AbstractContextManager[None]:
    """Reserve the plan's slices for this process; stand-ins are not reserved, since they may be shared."""
    return lock_devices(serving_plan.slices) if settings.stand_in == "none" else nullcontext()


def serve(
    outcome: PlanOutcome,
    request: PlanRequest,
    settings: ServeSettings,
    *,
    progress: Progress = ignore_progress,
    ready: Path | None = None,
    announce: Callable[[ReadyServer], None] = lambda serving: None,
) -> None:
    """Serve the plan in this process until SIGTERM or SIGINT, then finish the requests in flight.

    Once the server is ready, `announce` is called and the file `ready` written. Raises InputFault for a plan that
    cannot be served here, a slice or port in use, and a model that does not load.
    """
    serving_plan = prepare_serving(outcome, request, settings)

    def on_ready(serving: ReadyServer) -> None:
        # Exempt what is loaded from garbage collection, which would delay every queue.
        gc.collect()
        gc.freeze()
        if ready is not None:
            replace_file(ready, serving.to_json())
        announce(serving)

    async def run_until_stopped() -> None:
        await serve_until(stop_on_signal(), serving_plan, settings, listener, on_ready, progress)

    with (
        reserve_slices(serving_plan, settings),
        open_listener(settings.host, settings.port) as listener,
        off_cores(core for bound_slice in serving_plan.slices for core in bound_slice.cores),
    ):
        limits = replace(settings.limits, connections=raise_file_limit(settings.limits.connections))
        settings = replace(settings, limits=limits)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run_until_stopped())


async def serve_until(
    stop: asyncio.Event,
    serving_plan: ServingPlan,
    settings: ServeSettings,
    listener: socket.socket,
    announce: Callable[[ReadyServer], None],
    progress: Progress = ignore_progress,
) -> None:
    """Serve on a socket until `stop` is set; all processes have ended when this returns. Raises InputFault."""
    metrics = ServerMetrics(serving_plan)
    with private_temp_dir() as directory:
        engine = Engine(serving_plan, settings, metrics)
        llm_engines = EnginePool(serving_plan.engines)
        try:
            guard = AccessGuard(settings.access)
            names = [served.model for served in serving_plan.engines]
            llms = LlmFrontend(names, guard, metrics.observe_response)
            front = Frontend(engine, metrics, guard, settings.limits)
            application = PlanApplication(front, llms) if serving_plan.engines else front
            server = HttpServer(application, settings.limits, load_tls_context(settings.access))
            metrics.observe_server(server)
            llms.on_lost = lambda link: front.keep_task(asyncio.create_task(_restart(llm_engines, link)))

            async def start_all() -> None:
                llms_starting = asyncio.create_task(llm_engines.start(progress))
                try:
                    await _start_engine(engine, serving_plan, directory, settings, progress)
                    llms.add(await llms_starting)
                finally:
                    llms_starting.cancel()

            async with server.run(listener, GRACE_S):
                stopped = asyncio.create_task(stop.wait())
                starting = asyncio.create_task(start_all())
                try:
                    await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
                    if starting.done():
                        starting.result()
                        url = url_of(settings.host, listener, "http" if server.tls is None else "https")
                        announce(ReadyServer(url, (*engine.stages, *llms.names), serving_plan.warnings))
                        await stopped
                    await asyncio.gather(engine.drain(), llms.drain(settings.drain_s))
                finally:
                    starting.cancel()
                    stopped.cancel()
                    front.readers.end()
        finally:
            await asyncio.gather(engine.stop(), llm_engines.stop())


async def _restart(pool: EnginePool, link: EngineLink) -> None:
    """Start a lost engine anew, in vain at most RESTARTS times."""
    served = link.engine.served
    for _ in range(RESTARTS):
        if pool.ended:
            return
        try:
            link.renew(await pool.restart(link.engine))
        except InputFault as fault:
            print(f"the engine of {served.model} on {served.slice}: {fault}", file=sys.stderr, flush=True)
        else:
            print(f"the engine of {served.model} on {served.slice} is back", file=sys.stderr, flush=True)
            return


async def _start_engine(
    engine: Engine, serving_plan: ServingPlan, directory: Path, settings: ServeSettings, progress: Progress
) -> None:
    """Write the parts in a thread, while the frontend replies that nothing is ready; then start the workers."""
    folders = await asyncio.to_thread(export_parts, serving_plan, directory, settings.trust, progress)
    await engine.start(folders, progress)
