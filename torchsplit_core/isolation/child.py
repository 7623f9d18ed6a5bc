"""The child's side of isolation: take limits, call one function, answer in JSON lines.

Run as `python -P -m torchsplit_core.isolation.child FD`; the request comes on standard input,
answers go to the file descriptor FD. See `torchsplit_core.isolation` for the protocol.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import resource
import signal
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from torchsplit_core.isolation.memory import is_out_of_memory
from torchsplit_core.values import InputFault

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def apply_limits(limits: dict[str, Any]) -> None:
    """Set the kernel's limits for this process and what it starts; never above those it was given."""
    wanted = {
        resource.RLIMIT_AS: limits["memory_bytes"],
        resource.RLIMIT_CPU: limits["cpu_s"],
        resource.RLIMIT_FSIZE: limits["file_bytes"],
        resource.RLIMIT_NOFILE: limits["open_files"],
        resource.RLIMIT_CORE: 0,
    }
    for kind, value in wanted.items():
        if value is None:
            continue
        _, hard = resource.getrlimit(kind)
        least = value if hard == resource.RLIM_INFINITY else min(value, hard)
        # At its soft limit a process gets SIGXCPU, which says more than the SIGKILL of the hard one.
        spare = 5 if kind == resource.RLIMIT_CPU and least == value else 0
        top = least + spare if hard == resource.RLIM_INFINITY else min(least + spare, hard)
        resource.setrlimit(kind, (least, top))


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, and offer it first when memory is short."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    with contextlib.suppress(OSError):  # a container may forbid it; the limits still stand
        Path("/proc/self/oom_score_adj").write_text("1000")


class Answers:
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
        if isinstance(error, InputFault):
            self.send("fault", [error.where, error.value, error.rule, error.remedy])
        elif is_out_of_memory(error):
            self.send("out_of_memory", str(error)[:500])
        else:
            frames = traceback.extract_tb(trace)
            place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
            # Before the answer, after which the parent listens no longer.
            traceback.print_exception(kind, error, trace)
            sys.stderr.flush()
            self.send("error", {"type": kind.__name__, "message": str(error)[:2000], "place": place})


def main() -> None:
    """Take the request, apply the limits, call, answer, end at once."""
    answers = Answers(int(sys.argv[1]))
    sys.excepthook = answers.failure
    die_with_parent()
    request = json.load(sys.stdin)
    apply_limits(request["limits"])
    module, _, function = request["target"].partition(":")
    outcome = getattr(importlib.import_module(module), function)(request["arguments"], answers.progress)
    if isinstance(outcome, Iterator):
        for part in outcome:
            answers.send("part", part)
        outcome = None
    answers.send("result", outcome)
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads or atexit handlers of foreign code must not hold the answer up.
    os._exit(0)


if __name__ == "__main__":
    main()
