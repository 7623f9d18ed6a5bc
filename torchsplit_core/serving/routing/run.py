"""The router as a process: listens until it is told to stop, and answers what it has taken before it ends."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import uvloop

from torchsplit_core.serving.routing.app import Router
from torchsplit_core.serving.settings import Access, Limits, check_port
from torchsplit_core.serving.wire.descriptors import most_connections
from torchsplit_core.serving.wire.guard import tls_of
from torchsplit_core.serving.wire.http import HttpServer
from torchsplit_core.serving.wire.listening import listening, told_to_stop, url_of
from torchsplit_core.values.limits import check_number
from torchsplit_core.values.serving.routes import Routes

DRAIN_S = 30
"""How long requests that were taken may still need once it is told to stop."""


def run_router(
    routes: Routes,
    host: str,
    port: int,
    timeout_s: float,
    access: Access,
    limits: Limits,
) -> None:
    """Answer at host:port until SIGTERM or SIGINT. Raises InputFault where the port cannot be had."""
    check_number("--timeout-s", timeout_s, positive=True)
    check_port(port)
    tls = tls_of(access)
    # Each request has two: its client's, and one to a server.
    most = most_connections(2 * limits.connections) // 2
    limits = replace(limits, connections=max(1, most))

    async def until_told() -> None:
        stop = told_to_stop()
        router = Router(routes, timeout_s, access, limits)
        try:
            async with HttpServer(router, limits, tls).answering(listener, DRAIN_S):
                url = url_of(host, listener, "http" if tls is None else "https")
                print(f"{len(routes.models)} models at {url}/v2", flush=True)
                await stop.wait()
        finally:
            router.readers.end()

    with listening(host, port) as listener, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(until_told())
