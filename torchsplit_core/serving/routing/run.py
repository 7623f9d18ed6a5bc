"""The router as a process: listens until it is told to stop, and answers what it has taken before it ends."""

from __future__ import annotations

import asyncio

from torchsplit_core.serving.routing.app import router
from torchsplit_core.serving.settings import check_port
from torchsplit_core.serving.wire.descriptors import raise_file_limit
from torchsplit_core.serving.wire.listening import answering, listening, told_to_stop, url_of
from torchsplit_core.values.limits import check_number
from torchsplit_core.values.serving.routes import Routes

DRAIN_S = 30
"""How long requests that were taken may still need once it is told to stop."""


def run_router(routes: Routes, host: str, port: int, timeout_s: float) -> None:
    """Answer at host:port until SIGTERM or SIGINT. Raises InputFault where the port cannot be had."""
    check_number("--timeout-s", timeout_s, positive=True)
    check_port(port)

    async def until_told() -> None:
        stop = told_to_stop()
        async with answering(router(routes, timeout_s), listener, DRAIN_S):
            print(f"{len(routes.models)} models at {url_of(host, listener)}/v2", flush=True)
            await stop.wait()

    with listening(host, port) as listener:
        raise_file_limit()
        asyncio.run(until_told())
