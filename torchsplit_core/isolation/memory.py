"""How much memory a child may have, and whether an error says that it was too little."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

OUT_OF_MEMORY_TEXTS = ("can't allocate memory", "not enough memory", "bad_alloc", "out of memory")


def default_memory_bytes() -> int:
    """Four fifths of this machine's memory (or its container's), at least 4 GiB: torch alone maps 1 GiB."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError):  # no cgroup v2, or "max"
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return max(total * 4 // 5, 4 * 2**30)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python or torch (which raises RuntimeError) says that an allocation failed."""
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, (RuntimeError, OSError)) and any(
        text in str(error).lower() for text in OUT_OF_MEMORY_TEXTS
    )
