"""A front as a child of who measures it: asked in a line of JSON on standard input, it ends with that input.

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
from torchsplit_core.serving.front.server import serve
from torchsplit_core.serving.settings import settings_of
from torchsplit_core.values import InputFault


def _say(kind: str, content: Any) -> None:
    sys.stdout.write(json.dumps({kind: content}) + "\n")
    sys.stdout.flush()


def _end_with_input() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    """Serve until standard input ends."""
    asked = json.loads(sys.stdin.readline())
    _, outcome = read_text(asked["plan"], expected="torchsplit.plan")
    _, request = read_text(asked["request"], expected="torchsplit.plan_request")
    threading.Thread(target=_end_with_input, daemon=True).start()
    try:
        serve(
            outcome,
            request,
            settings_of(asked["settings"]),
            progress=lambda share, text: _say("progress", [share, text]),
            announce=lambda serving: _say("ready", asdict(serving)),
        )
    except InputFault as fault:
        _say("fault", fault.parts)
        return 2
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    # The thread that waits for standard input must not hold the end up.
    os._exit(status)
