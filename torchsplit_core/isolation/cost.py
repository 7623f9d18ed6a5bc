"""How long isolation takes to set up, as measured by the children themselves."""

from __future__ import annotations

from typing import Any

from torchsplit_core.isolation.sandbox import current_sandbox
from torchsplit_core.values import Progress


def set_up_seconds(times: int = 10) -> tuple[float, ...]:
    """Seconds from the first to the last call that sets a child's isolation up, for `times` children in sequence.

    At the level of `isolation_level()`. Excludes starting the interpreter, which a child without isolation needs too.
    Raises InputFault as `run_limited` does.
    """
    from torchsplit_core.isolation.run import run_limited

    return tuple(float(run_limited(f"{__name__}:report_setup_s", {})) for _ in range(times))


def report_setup_s(arguments: dict[str, Any], progress: Progress) -> float:
    """The function that the child runs."""
    return current_sandbox.setup_s
