"""What the children of the telemetry tests run."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from torchsplit_core import telemetry
from torchsplit_core.telemetry import schema
from torchsplit_core.values import Progress


def measure(arguments: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """A point in an isolated child; what of the telemetry's environment the child sees."""
    with telemetry.adopt(arguments["telemetry"]), telemetry.span(schema.PROFILE_POINT, batch_size=4) as point:
        point.set(p50_ms=1.5)
    return {"environment": [name for name in os.environ if name.startswith(("OTEL", "TORCHSPLIT"))]}


def end_and_be_killed() -> None:
    """One span that ends, one that is open when the process is killed."""
    telemetry.configure("killed", folder=Path(sys.argv[2]))
    with telemetry.span(schema.PROFILE):
        with telemetry.span(schema.PROFILE_POINT):
            pass
        os.kill(os.getpid(), signal.SIGKILL)


def leave_it_to_the_exit() -> None:
    """A span, and no call of shutdown."""
    telemetry.configure("exits")
    with telemetry.span(schema.PLAN):
        pass


if __name__ == "__main__":
    {"killed": end_and_be_killed, "exits": leave_it_to_the_exit}[sys.argv[1]]()
