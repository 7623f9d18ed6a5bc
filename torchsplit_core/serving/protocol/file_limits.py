"""The limit of open files for thousands of connections."""

from __future__ import annotations

import contextlib
import resource

OTHER_FILES = 256
"""Open files besides connections: workers, log, libraries."""


def raise_file_limit(wanted: int) -> int:
    """Raise this process's file limit as far as possible; how many of the wanted connections it allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft - OTHER_FILES))
