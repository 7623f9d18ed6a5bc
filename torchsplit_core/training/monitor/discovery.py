"""Where other tools find a run's figures: the URLs of its endpoints while it trains, and its event files."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

from torchsplit_core.files import replace_file
from torchsplit_core.training.run_folder import TENSORBOARD, WATCH

ENDPOINT = "endpoint-"
WILDCARD_ADDRESSES = ("", "0.0.0.0", "::")
MAX_CHARACTERS = 300


@contextlib.contextmanager
def published_endpoint(run: Path, host: str, port: int) -> Iterator[None]:
    """Publish in the run's folder where figures are served, while they are; each of several nodes publishes its own.

    Raises InputFault if the folder cannot be written.
    """
    name = socket.gethostname()
    url_host = name if host in WILDCARD_ADDRESSES else f"[{host}]" if ":" in host else host
    path = run / WATCH / f"{ENDPOINT}{name}-{port}"
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, f"http://{url_host}:{port}/metrics\n")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def endpoints(run: Path) -> tuple[str, ...]:
    """The URLs at which a run's figures are served; that of a killed process stays in the folder."""
    addresses = []
    for path in sorted((run / WATCH).glob(f"{ENDPOINT}*")):
        with contextlib.suppress(OSError, ValueError), path.open(encoding="utf-8") as stream:
            addresses.append(stream.read(MAX_CHARACTERS).strip())
    return tuple(addresses)


def event_files(run: Path) -> Path | None:
    """The folder of the run's event files; None if it has none."""
    folder = run / TENSORBOARD
    return folder if any(folder.glob("events.out.tfevents*")) else None
