"""The listening socket and the stop signal of a server."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from torchsplit_core.values import InputFault, quoted

BACKLOG = 4096


@contextmanager
def open_listener(host: str, port: int) -> Iterator[socket.socket]:
    """The listening socket. Raises InputFault if host or port is not available."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG, reuse_port=False)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        if getattr(error, "errno", None) not in (errno.EADDRINUSE, errno.EACCES):
            remedy = (
                "Write 127.0.0.1 for this machine alone, 0.0.0.0 for all of its addresses, or one of them."
            )
            problem = f"{quoted(host)} is no address of this machine: {why}"
            raise InputFault("--host", problem, remedy) from error
        raise InputFault(
            "--port",
            f"{host}:{port} cannot be listened on: {why}",
            "Stop what has it, choose another --port, or 0 for any that is free.",
        ) from error
    # Accepted sockets inherit it. Without it the body of a response waits 40 ms for the acknowledgement of its head.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with listener:
        yield listener


def url_of(host: str, listener: socket.socket, scheme: str = "http") -> str:
    """The URL of a listener."""
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"


def stop_on_signal() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set; call it in the main thread's event loop."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop
