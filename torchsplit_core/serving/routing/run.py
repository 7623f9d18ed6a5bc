"""The router as a process: listens until it is told to stop, and answers what it has taken before it ends."""

from __future__ import annotations

import signal
import socket
import sys
from types import FrameType

import uvicorn

from torchsplit_core.serving.routing.app import router
from torchsplit_core.values import InputFault
from torchsplit_core.values.limits import check_number
from torchsplit_core.values.serving.routes import Routes

DRAIN_S = 30
"""How long requests that were taken may still need once it is told to stop."""


def run_router(routes: Routes, host: str, port: int, timeout_s: float) -> None:
    """Answer at host:port until SIGTERM or Ctrl+C. Raises InputFault where the port cannot be had."""
    check_number("--timeout-s", timeout_s, positive=True)
    if not 0 <= port <= 65535:
        raise InputFault("--port", port, "a port is 0 to 65535", "For example 8000.")
    listening = _listen(host, port)
    print(f"{len(routes.models)} models at http://{host}:{listening.getsockname()[1]}/v2", flush=True)
    config = uvicorn.Config(
        router(routes, timeout_s), log_level="warning", timeout_graceful_shutdown=DRAIN_S, access_log=False
    )
    # uvicorn answers what it has taken, then raises the signal again: a router that was told to stop has ended well.
    signal.signal(signal.SIGTERM, _end)
    uvicorn.Server(config).run(sockets=[listening])


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(0)


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), backlog=2048)
    except OSError as error:
        raise InputFault(
            "--port",
            f"{host}:{port}",
            f"nothing else listens there ({error.strerror})",
            "Choose another --port.",
        ) from error
