"""A server as a child of a load test: reads its command as a line of JSON and ends when standard input does.

Lines on standard output: `{"progress": [share, text]}`, `{"ready": {url, models, warnings}}`,
`{"fault": [where, problem, remedy]}`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from dataclasses import asdict
from typing import Any

from torchsplit_core.files import read_text
from torchsplit_core.serving.frontend.server import serve
from torchsplit_core.serving.settings import settings_from_dict
from torchsplit_core.values import InputFault


def _send(kind: str, content: Any) -> None:
    sys.stdout.write(json.dumps({kind: content}) + "\n")
    sys.stdout.flush()


def _stop_at_stdin_eof() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    """Serve until standard input ends."""
    command = json.loads(sys.stdin.readline())
    _, outcome = read_text(command["plan"], expected="torchsplit.plan")
    _, request = read_text(command["request"], expected="torchsplit.plan_request")
    threading.Thread(target=_stop_at_stdin_eof, daemon=True).start()
    try:
        serve(
            outcome,
            request,
            settings_from_dict(command["settings"]),
            progress=lambda share, text: _send("progress", [share, text]),
            announce=lambda serving: _send("ready", asdict(serving)),
        )
    except InputFault as fault:
        _send("fault", fault.parts)
        return 2
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    # The thread that waits for standard input must not hold the end up.
    os._exit(status)
