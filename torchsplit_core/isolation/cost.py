"""How long the isolation takes to set up, as the children themselves measure it."""

from __future__ import annotations

from typing import Any

from torchsplit_core.isolation.sandbox import current_sandbox
from torchsplit_core.values import Progress


def set_up_seconds(times: int = 10) -> tuple[float, ...]:
    """Seconds from a child's first call to its last that sets its isolation up, of so many children in a row.

    At the level of `isolation_level()`. Starting the interpreter, which a child without isolation needs as well,
    does not count. Raises InputFault as `run_limited` does.
    """
    from torchsplit_core.isolation.run import run_limited

    return tuple(float(run_limited(f"{__name__}:report_setup_s", {})) for _ in range(times))


def report_setup_s(arguments: dict[str, Any], progress: Progress) -> float:
    """The child's part."""
    return current_sandbox.setup_s
