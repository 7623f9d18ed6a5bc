"""How long work tells what it is doing, without knowing who listens."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[float, str], None]
"""Called with the share done (0 to 1) and what is being done now."""


def ignore_progress(share: float, message: str) -> None:
    """Listen to nothing."""
