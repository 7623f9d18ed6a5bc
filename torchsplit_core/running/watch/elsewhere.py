"""Where other tools find a run's figures: the addresses of its endpoints while it goes on, its event files."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

from torchsplit_core.files import replace_file
from torchsplit_core.running.folder import TENSORBOARD, WATCH

ENDPOINT = "endpoint-"
EVERY_ADDRESS = ("", "0.0.0.0", "::")
LONGEST = 300


@contextlib.contextmanager
def endpoint_told(run: Path, host: str, port: int) -> Iterator[None]:
    """Have the run's folder say where the figures are served, as long as they are; of several nodes each its own.

    Raises InputFault where the folder cannot be written.
    """
    name = socket.gethostname()
    told = name if host in EVERY_ADDRESS else f"[{host}]" if ":" in host else host
    path = run / WATCH / f"{ENDPOINT}{name}-{port}"
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, f"http://{told}:{port}/metrics\n")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def endpoints(run: Path) -> tuple[str, ...]:
    """The addresses at which the figures of a run that goes on are served; what a killed one said stays there."""
    found = []
    for path in sorted((run / WATCH).glob(f"{ENDPOINT}*")):
        with contextlib.suppress(OSError, ValueError), path.open(encoding="utf-8") as stream:
            found.append(stream.read(LONGEST).strip())
    return tuple(found)


def event_files(run: Path) -> Path | None:
    """The folder of the run's event files; None where it has none."""
    folder = run / TENSORBOARD
    return folder if any(folder.glob("events.out.tfevents*")) else None
