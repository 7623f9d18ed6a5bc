"""The child's side of isolation: confine itself, call one function, answer in JSON lines.

Run as `python -P -m torchsplit_core.isolation.child FD VERDICT`; the request comes on standard input, answers go to
the file descriptor FD, what limit the supervisor found passed to VERDICT. See `torchsplit_core.isolation`.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from torchsplit_core import extras
from torchsplit_core.isolation.limits import apply_limits, is_out_of_memory
from torchsplit_core.isolation.sandbox import current_sandbox
from torchsplit_core.isolation.sandbox.supervisor import start_worker
from torchsplit_core.values import InputFault, InternalFault, last_cause, system_reason


class MessageWriter:
    """Writes one JSON object a line to the parent."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._file = os.fdopen(descriptor, "w", encoding="utf-8")

    def send(self, kind: str, content: Any) -> None:
        """One message; flushed at once."""
        # dumps, for dump writes in tiny pieces, several times slower
        self._file.write(json.dumps({kind: content}) + "\n")
        self._file.flush()

    def progress(self, share: float, message: str) -> None:
        """What `values.Progress` asks for."""
        self.send("progress", [float(share), str(message)])

    def failure(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """`sys.excepthook`: whatever was raised, as a message the parent can turn into a fault."""
        # A broken promise of our own is told as it is, whatever it broke by.
        cause = error if isinstance(error, InputFault | InternalFault) else last_cause(error)
        cause = extras.missing_package(cause) or cause
        if isinstance(cause, InputFault):
            self.send("fault", cause.parts)
        elif is_out_of_memory(error) or is_out_of_memory(cause):
            self.send("out_of_memory", str(cause)[:500])
        else:
            frames = traceback.extract_tb(cause.__traceback__ or trace)
            location = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
            # Before the answer, after which the parent listens no longer.
            traceback.print_exception(kind, error, trace)
            sys.stderr.flush()
            details = {"type": type(cause).__name__, "message": str(cause)[:2000], "place": location}
            self.send("error", details | {"remedy": current_sandbox.remedy_for(error)})


def main() -> None:
    """Take the request, confine the worker, call, answer, end at once."""
    writer = MessageWriter(int(sys.argv[1]))
    request = json.load(sys.stdin)
    try:
        start_worker(request, int(sys.argv[2]))
    except OSError as error:
        writer.send("unconfined", system_reason(error))
        os._exit(1)
    sys.excepthook = writer.failure
    apply_limits(request["limits"])
    module, _, function = request["target"].partition(":")
    outcome = getattr(importlib.import_module(module), function)(request["arguments"], writer.progress)
    if isinstance(outcome, Iterator):
        for part in outcome:
            writer.send("part", part)
        outcome = None
    writer.send("result", outcome)
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads or atexit handlers of foreign code must not hold the answer up.
    os._exit(0)


if __name__ == "__main__":
    main()
