"""A thread that sends batches into a pipeline while results are taken out of it."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterable, Sequence
from typing import Any

from torchsplit_core.stages.tensor_transport import send_values


class Feeder:
    """Sends every batch and counts them. `woken` becomes readable when it has sent one or ended.

    What the caller's iterable raises, or a batch that cannot be sent, is kept in `error` for the caller's own thread.
    """

    def __init__(
        self, stream: socket.socket, names: Sequence[str], batches: Iterable[dict[str, Any]]
    ) -> None:
        self.sent = 0
        self.ended = False
        self.error: Exception | None = None
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._stopping = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._feed, args=(stream, names, batches), daemon=True)
        self._thread.start()

    @classmethod
    def empty(cls) -> Feeder:
        """One that has nothing to send."""
        idle, _other = socket.socketpair()
        with idle, _other:
            feeder = cls(idle, (), ())
            feeder.stop()
        return feeder

    def stop(self) -> None:
        """Wait for the thread, whose stream the caller has shut down; an iterable that blocks is left behind."""
        self._stopping = True
        self._thread.join(1.0)
        with self._lock:
            if self.wake_fd >= 0:
                os.close(self.wake_fd)
                self.wake_fd = -1

    def _feed(self, stream: socket.socket, names: Sequence[str], batches: Iterable[dict[str, Any]]) -> None:
        try:
            for batch in batches:
                if self._stopping:
                    return
                self.sent += 1
                self._wake()
                try:
                    send_values(stream, self.sent - 1, {name: batch[name] for name in names})
                except OSError:
                    return  # the first stage is gone, which the watch sees and says better
                except TypeError:
                    self.sent -= 1
                    raise
        except Exception as error:  # noqa: BLE001 - the caller's iterable: raised again in its own thread
            self.error = error
        finally:
            self.ended = True
            self._wake()

    def _wake(self) -> None:
        with self._lock:
            if self.wake_fd >= 0:
                os.eventfd_write(self.wake_fd, 1)
