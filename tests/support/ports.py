"""Ports for servers that tests start by number."""

import itertools
import os
import socket

FIRST, LAST = 20_000, 32_000
"""Below the ports that the kernel gives to connections (32,768 and up): one given out can't be taken by a connection
of another test before its server listens."""
PER_WORKER = 1_000

_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % (
    (LAST - FIRST) // PER_WORKER
)
# Processes that one worker starts, and runs beside each other, begin at different places.
_numbers = (
    FIRST + _worker * PER_WORKER + (os.getpid() + offset) % PER_WORKER for offset in itertools.count()
)


def free_port() -> int:
    """A port on which nothing listens, given out once."""
    while True:
        port = next(_numbers)
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
