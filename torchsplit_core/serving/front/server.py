"""A plan served until the process is told to stop: parts written, workers started, requests answered, all ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from torchsplit_core.isolation import private_room
from torchsplit_core.serving.engine import Engine
from torchsplit_core.serving.front.protocol import make_app
from torchsplit_core.serving.meters import Meters
from torchsplit_core.serving.parts import write_parts
from torchsplit_core.serving.places import find_places
from torchsplit_core.serving.roster import Roster, make_roster
from torchsplit_core.serving.settings import ServeSettings, Serving, check_settings
from torchsplit_core.values import InputFault, PlanOutcome, PlanRequest, Progress, ignore_progress

BACKLOG = 4096


def prepare(outcome: PlanOutcome, request: PlanRequest, settings: ServeSettings) -> Roster:
    """Who will serve what, checked before anything starts. Raises InputFault."""
    check_settings(settings)
    return make_roster(outcome, request, find_places(outcome, settings.stand_in))


def serve(
    outcome: PlanOutcome,
    request: PlanRequest,
    settings: ServeSettings,
    *,
    progress: Progress = ignore_progress,
    ready: Path | None = None,
    announce: Callable[[Serving], None] = lambda serving: None,
) -> None:
    """Serve the plan in this process until SIGTERM or SIGINT, then answer what was taken and end.

    `announce` gets what is served once it is ready, and so does the file `ready`. Raises InputFault for a plan that
    cannot be served here, a port that is taken, and a model that does not load.
    """
    roster = prepare(outcome, request, settings)

    def tell(serving: Serving) -> None:
        if ready is not None:
            ready.write_text(serving.line(), encoding="utf-8")
        announce(serving)

    async def until_told() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        await serve_until(stop, roster, settings, listener, tell, progress)

    with listening(settings) as listener, _apart_from(roster):
        _raise_file_limit()
        asyncio.run(until_told())


async def serve_until(
    stop: asyncio.Event,
    roster: Roster,
    settings: ServeSettings,
    listener: socket.socket,
    announce: Callable[[Serving], None],
    progress: Progress = ignore_progress,
) -> None:
    """Serve a roster on a socket until `stop` is set; every process has ended when this returns. Raises InputFault."""
    meters = Meters(roster)
    with private_room() as room:
        engine = Engine(roster, settings, meters)
        server = _Server(
            uvicorn.Config(
                make_app(engine, meters),
                log_level="critical",
                access_log=False,
                lifespan="off",
                timeout_keep_alive=75,
                timeout_graceful_shutdown=2,
                ws="none",
            )
        )
        listening_task = asyncio.create_task(server.serve([listener]))
        stopped = asyncio.create_task(stop.wait())
        starting = asyncio.create_task(_start(engine, roster, room, settings, progress))
        try:
            await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                port = listener.getsockname()[1]
                host = f"[{settings.host}]" if ":" in settings.host else settings.host
                announce(Serving(f"http://{host}:{port}", tuple(engine.stations), roster.warnings))
                await stopped
            await engine.drain()
        finally:
            starting.cancel()
            stopped.cancel()
            server.should_exit = True
            await listening_task
            await engine.stop()


async def _start(
    engine: Engine, roster: Roster, room: Path, settings: ServeSettings, progress: Progress
) -> None:
    """Write the parts beside the event loop, which answers meanwhile that nothing is ready; then start the workers."""
    folders = await asyncio.to_thread(write_parts, roster, room, settings.trust, progress)
    await engine.start(folders, progress)


class _Server(uvicorn.Server):
    """uvicorn without signal handlers of its own: a request that comes while draining gets an answer."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextmanager
def listening(settings: ServeSettings) -> Iterator[socket.socket]:
    """The socket, bound before any model is loaded. Raises InputFault where the port is taken."""
    try:
        family = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server(
            (settings.host, settings.port), family=family, backlog=BACKLOG, reuse_port=False
        )
    except OSError as error:
        raise InputFault(
            "--port",
            f"{settings.host}:{settings.port}",
            f"it can be listened on: {error.strerror or error}",
            "Stop what has it, choose another --port, or 0 for any that is free.",
        ) from error
    # What it accepts takes this over. Without it the body of an answer waits 40 ms for the acknowledgement of its head.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with listener:
        yield listener


@contextmanager
def _apart_from(roster: Roster) -> Iterator[None]:
    """This process on the cores that no slice has, where there are any; undone at the end."""
    before = os.sched_getaffinity(0)
    left = before - {core for place in roster.slices for core in place.cores}
    if left:
        os.sched_setaffinity(0, left)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _raise_file_limit() -> None:
    """A connection is a file: as many as this process may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
