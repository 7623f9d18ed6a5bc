"""Call a function at intervals while this process waits for the ranks."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

INTERVAL_S = 0.5


@contextlib.contextmanager
def run_periodically(
    callback: Callable[[], object], name: str, every_s: float = INTERVAL_S
) -> Iterator[None]:
    """Call `callback` every `every_s` seconds in a thread of that name; the exit waits for the last call to return."""
    ended = threading.Event()

    def loop() -> None:
        while not ended.wait(every_s):
            callback()

    thread = threading.Thread(target=loop, daemon=True, name=name)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
