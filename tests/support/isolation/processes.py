"""Which processes of a test still run, whatever namespace they are in: found by a mark in their command line."""

import time
import uuid
from pathlib import Path

WAIT_S = 120.0


def mark() -> str:
    """A name that no other process has."""
    return f"torchsplit-test-{uuid.uuid4().hex}"


def running(name: str) -> list[int]:
    """The processes with that mark (a zombie nobody has reaped has no command line)."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if name.encode() in command:
                found.append(int(entry.name))
    return found


def gone(name: str) -> bool:
    """Whether none of them runs; a kill is delivered a moment after it is sent."""
    return _within(lambda: not running(name))


def began(name: str, count: int = 1) -> bool:
    """Whether so many of them run."""
    return _within(lambda: len(running(name)) >= count)


def _within(holds: object) -> bool:
    assert callable(holds)
    deadline = time.monotonic() + WAIT_S
    while not (found := bool(holds())) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found
