"""A server as a child process: it writes lines of JSON to standard output, and ends when standard input does."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from torchsplit_core.values import InputFault


def send_line(content: dict[str, Any]) -> None:
    """Write a line of JSON to standard output."""
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()


def run_child(serve: Callable[[dict[str, Any]], None]) -> NoReturn:
    """Serve by the command that stands in the first line of standard input, and end the process: with 0, or with 2
    after a line `{"fault": [where, problem, remedy]}`. At the end of standard input it gets SIGTERM.
    """
    command = json.loads(sys.stdin.readline())
    threading.Thread(target=_stop_at_stdin_eof, daemon=True).start()
    status = 0
    try:
        serve(command)
    except InputFault as fault:
        send_line({"fault": fault.parts})
        status = 2
    sys.stdout.flush()
    # The thread that waits for standard input must not hold the end up.
    os._exit(status)


def _stop_at_stdin_eof() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)
