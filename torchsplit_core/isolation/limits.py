"""What a child may use: time, memory, files, processes; enforced by the kernel or counted by the supervisor."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchsplit_core.values.units import GIB

OUT_OF_MEMORY_TEXTS = ("can't allocate memory", "not enough memory", "bad_alloc", "out of memory")
MIN_TASKS, TASKS_PER_CORE = 512, 8
"""torch starts about two threads a core (OpenMP's and its own pools) in each process that computes, so this allows
four such processes; a program that starts more is out of control."""
TOTAL_FILE_BYTES = 4 * GIB


def default_memory_bytes() -> int:
    """Four fifths of the machine's or container's memory, at least 4 GiB, because torch alone maps 1 GiB."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError):  # no cgroup v2, or "max"
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return max(total * 4 // 5, 4 * GIB)


def default_tasks() -> int:
    """The processes and threads that a model's work may have in total: 512, or 8 a core if that is more."""
    return max(MIN_TASKS, TASKS_PER_CORE * (os.cpu_count() or 1))


@dataclass(frozen=True, slots=True)
class Limits:
    """What a child may use; None means no limit.

    Per process: `memory_bytes` limits address space (use None with CUDA, which maps far more than it uses), `cpu_s`
    the processor time of all its threads in whole seconds, `file_bytes` one file, `open_files` files open at once.
    For the child and all it starts, counted several times a second: `tasks` limits processes and threads at once,
    `total_memory_bytes` memory in use, with shared pages counted once, `total_file_bytes` the growth of its private
    folder and of the folders it may write to. `wall_s` limits its lifetime; `silent_s` the time without an answer
    after the first part, for work that reports each of its steps.
    """

    wall_s: float = 300.0
    silent_s: float | None = None
    cpu_s: int | None = 1800
    memory_bytes: int | None = field(default_factory=default_memory_bytes)
    file_bytes: int | None = GIB
    open_files: int | None = 256
    tasks: int | None = field(default_factory=default_tasks)
    total_memory_bytes: int | None = field(default_factory=default_memory_bytes)
    total_file_bytes: int | None = TOTAL_FILE_BYTES


def apply_limits(limits: dict[str, Any]) -> None:
    """Set the kernel's limits for this process and what it starts; never above the limits that it inherited."""
    wanted = {
        resource.RLIMIT_AS: limits["memory_bytes"],
        resource.RLIMIT_CPU: limits["cpu_s"],
        resource.RLIMIT_FSIZE: limits["file_bytes"],
        resource.RLIMIT_NOFILE: limits["open_files"],
        resource.RLIMIT_CORE: 0,
    }
    for kind, value in wanted.items():
        if value is None:
            continue
        _, hard = resource.getrlimit(kind)
        soft = value if hard == resource.RLIM_INFINITY else min(value, hard)
        # At its soft limit a process gets SIGXCPU, which says more than the SIGKILL of the hard one.
        spare = 5 if kind == resource.RLIMIT_CPU and soft == value else 0
        new_hard = soft + spare if hard == resource.RLIM_INFINITY else min(soft + spare, hard)
        resource.setrlimit(kind, (soft, new_hard))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python or torch (which raises RuntimeError) says that an allocation failed."""
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, (RuntimeError, OSError)) and any(
        text in str(error).lower() for text in OUT_OF_MEMORY_TEXTS
    )


def aborted_for_memory(status: int, output: bytes) -> bool:
    """Whether a process ended itself because an allocation failed, as Rust's and C++'s allocators do."""
    words = (b"memory allocation of", b"bad_alloc")
    return status == -signal.SIGABRT and any(word in output for word in words)
