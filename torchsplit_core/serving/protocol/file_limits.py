"""Files of a process that has thousands of connections."""

from __future__ import annotations

import contextlib
import resource

OTHER_FILES = 256
"""Files of such a process that are no connections: its workers, its log, its libraries."""


def raise_file_limit(wanted: int) -> int:
    """A connection is a file: as many of those wanted as this process may have, its limit raised as far as it goes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft - OTHER_FILES))
