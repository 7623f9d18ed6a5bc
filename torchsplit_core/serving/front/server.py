"""A plan served until the process is told to stop: parts written, workers started, requests answered, all ended."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import uvloop

from torchsplit_core.files import replace_file
from torchsplit_core.isolation import private_room
from torchsplit_core.serving.engine import Engine
from torchsplit_core.serving.front.protocol import Front
from torchsplit_core.serving.front.slice_locks import held
from torchsplit_core.serving.meters import Meters
from torchsplit_core.serving.parts import write_parts
from torchsplit_core.serving.places import find_places
from torchsplit_core.serving.roster import Roster, make_roster
from torchsplit_core.serving.settings import ServeSettings, Serving, check_settings
from torchsplit_core.serving.wire.descriptors import most_connections
from torchsplit_core.serving.wire.guard import Guard, tls_of
from torchsplit_core.serving.wire.http import HttpServer
from torchsplit_core.serving.wire.listening import listening, told_to_stop, url_of
from torchsplit_core.values import PlanOutcome, PlanRequest, Progress, ignore_progress

GRACE_S = 2
"""For answers to be written, once all that was taken has one."""


def prepare(outcome: PlanOutcome, request: PlanRequest, settings: ServeSettings) -> Roster:
    """Who will serve what, checked before anything starts. Raises InputFault."""
    check_settings(settings)
    return make_roster(outcome, request, find_places(outcome, settings.stand_in))


def slices_held(roster: Roster, settings: ServeSettings) -> AbstractContextManager[None]:
    """With the roster's slices for this process alone. What stands in for slices is shared: that is its purpose."""
    return held(roster.slices) if settings.stand_in == "none" else nullcontext()


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
    cannot be served here, a slice or a port that is taken, and a model that does not load.
    """
    roster = prepare(outcome, request, settings)

    def tell(serving: Serving) -> None:
        # What was loaded stays: going through all of it again and again would hold every queue up meanwhile.
        gc.collect()
        gc.freeze()
        if ready is not None:
            # Whoever waits for the file finds it whole.
            replace_file(ready, serving.line())
        announce(serving)

    async def until_told() -> None:
        await serve_until(told_to_stop(), roster, settings, listener, tell, progress)

    with (
        slices_held(roster, settings),
        listening(settings.host, settings.port) as listener,
        _apart_from(roster),
    ):
        limits = replace(settings.limits, connections=most_connections(settings.limits.connections))
        settings = replace(settings, limits=limits)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(until_told())


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
        try:
            front = Front(engine, meters, Guard(settings.access), settings.limits)
            server = HttpServer(front, settings.limits, tls_of(settings.access))
            meters.watch(server)
            async with server.answering(listener, GRACE_S):
                stopped = asyncio.create_task(stop.wait())
                starting = asyncio.create_task(_start(engine, roster, room, settings, progress))
                try:
                    await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
                    if starting.done():
                        starting.result()
                        url = url_of(settings.host, listener, "http" if server.tls is None else "https")
                        announce(Serving(url, tuple(engine.stations), roster.warnings))
                        await stopped
                    await engine.drain()
                finally:
                    starting.cancel()
                    stopped.cancel()
                    front.readers.end()
        finally:
            await engine.stop()


async def _start(
    engine: Engine, roster: Roster, room: Path, settings: ServeSettings, progress: Progress
) -> None:
    """Write the parts beside the event loop, which answers meanwhile that nothing is ready; then start the workers."""
    folders = await asyncio.to_thread(write_parts, roster, room, settings.trust, progress)
    await engine.start(folders, progress)


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
