"""The router's process: serves until it is told to stop, then finishes the requests in flight."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import uvloop

from torchsplit_core.serving.protocol.access_guard import load_tls_context
from torchsplit_core.serving.protocol.file_limits import raise_file_limit
from torchsplit_core.serving.protocol.http_server import HttpServer
from torchsplit_core.serving.protocol.listener import open_listener, stop_on_signal, url_of
from torchsplit_core.serving.router.app import Router
from torchsplit_core.serving.settings import AccessSettings, RequestLimits, check_port
from torchsplit_core.values.limits import check_number
from torchsplit_core.values.serving.routes import Routes

DRAIN_S = 30
"""Time for requests in flight once the router is told to stop."""


def run_router(
    routes: Routes,
    host: str,
    port: int,
    timeout_s: float,
    access: AccessSettings,
    limits: RequestLimits,
) -> None:
    """Route requests at host:port until SIGTERM or SIGINT. Raises InputFault if the port is not available."""
    check_number("--timeout-s", timeout_s, positive=True)
    check_port(port)
    tls = load_tls_context(access)
    # A request needs two connections: its client's and one to a server.
    max_clients = raise_file_limit(2 * limits.connections) // 2
    limits = replace(limits, connections=max(1, max_clients))

    async def run_until_stopped() -> None:
        stop = stop_on_signal()
        router = Router(routes, timeout_s, access, limits)
        try:
            async with HttpServer(router, limits, tls).run(listener, DRAIN_S):
                url = url_of(host, listener, "http" if tls is None else "https")
                print(f"{len(routes.models)} models at {url}/v2", flush=True)
                await stop.wait()
        finally:
            router.readers.end()

    with open_listener(host, port) as listener, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run_until_stopped())
