"""How many connections a process may have."""

from __future__ import annotations

import contextlib
import resource


def raise_file_limit() -> None:
    """A connection is a file: as many as this process may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
