"""The child's side of isolation: confine itself, call one function, answer in JSON lines.

Run as `python -P -m torchsplit_core.isolation.child FD VERDICT`; the request comes on standard input, answers go to the
file descriptor FD, the limit that the supervisor found exceeded goes to VERDICT. See `torchsplit_core.isolation`.
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
    """Writes JSON objects to the parent, one per line."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._file = os.fdopen(descriptor, "w", encoding="utf-8")

    def send(self, kind: str, content: Any) -> None:
        """Send one message and flush it."""
        # Not json.dump: it writes tiny pieces, several times slower.
        self._file.write(json.dumps({kind: content}) + "\n")
        self._file.flush()

    def progress(self, share: float, message: str) -> None:
        """Report progress; implements `values.Progress`."""
        self.send("progress", [float(share), str(message)])

    def failure(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """`sys.excepthook`: sends any exception as a message that the parent turns into a fault."""
        # A fault of our own is reported as it is, whatever its cause.
        cause = error if isinstance(error, InputFault | InternalFault) else last_cause(error)
        cause = extras.missing_package(cause) or cause
        if isinstance(cause, InputFault):
            self.send("fault", cause.parts)
        elif is_out_of_memory(error) or is_out_of_memory(cause):
            self.send("out_of_memory", str(cause)[:500])
        else:
            frames = traceback.extract_tb(cause.__traceback__ or trace)
            location = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
            # Before the answer, because the parent stops reading after it.
            traceback.print_exception(kind, error, trace)
            sys.stderr.flush()
            details = {"type": type(cause).__name__, "message": str(cause)[:2000], "place": location}
            self.send("error", details | {"remedy": current_sandbox.remedy_for(error)})


def main() -> None:
    """Read the request, confine the worker, call the function, answer, and exit at once."""
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
    # Threads or atexit handlers of foreign code must not delay the exit.
    os._exit(0)


if __name__ == "__main__":
    main()
