"""Routers in a thread of the test's process, and clients of them."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2

from torchsplit_core.serving.protocol.http_server import HttpServer
from torchsplit_core.serving.protocol.listener import open_listener
from torchsplit_core.serving.router.app import Router
from torchsplit_core.serving.settings import AccessSettings, RequestLimits
from torchsplit_core.values.serving.routes import Routes


@contextmanager
def routed(
    routes: Routes,
    timeout_s: float,
    access: AccessSettings | None = None,
    limits: RequestLimits | None = None,
) -> Iterator[httpx2.Client]:
    """A client of a router, which listens for as long."""
    access, limits = access or AccessSettings(), limits or RequestLimits()
    with open_listener("127.0.0.1", 0) as listener:
        loop, begun, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

        async def work() -> None:
            router = Router(routes, timeout_s, access, limits)
            async with HttpServer(router, limits).run(listener, 1):
                begun.set()
                await stop.wait()
            router.readers.end()

        thread = threading.Thread(target=loop.run_until_complete, args=(work(),))
        thread.start()
        assert begun.wait(120)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            with httpx2.Client(base_url=url, timeout=60) as client:
                yield client
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join(60)
            loop.close()
