"""Progress reports of long work."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[float, str], None]
"""Called with the share done (0 to 1) and the current step."""


def ignore_progress(share: float, message: str) -> None:
    """Report to nobody."""
