"""System calls that isolation needs and Python 3.11 does not offer, by ctypes. Linux only."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

# linux/prctl.h
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1, 2  # linux/capability.h
_CAPABILITY_VERSION_3 = 0x20080522


@cache
def libc() -> ctypes.CDLL:
    """The C library of this process; ctypes saves its errno for `check`."""
    return ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> int:
    """The result of a call. Raises OSError naming `what` if it is -1."""
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def system_call(number: int, what: str, *arguments: Any) -> int:
    """Make a system call for which the C library has no function. Raises OSError."""
    call = libc().syscall
    call.restype = ctypes.c_long
    return check(int(call(ctypes.c_long(number), *arguments)), what)


def kernel_version() -> tuple[int, int]:
    """The running kernel's version, for example (6, 14); (0, 0) if unknown."""
    parts = os.uname().release.split(".")
    digits = ["".join(c for c in part if c.isdigit()) for part in (*parts, "", "")[:2]]
    return int(digits[0] or 0), int(digits[1] or 0)


def set_parent_death_signal(number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when the thread that started it ends."""
    check(libc().prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, and kill it first when memory is short."""
    set_parent_death_signal()
    with contextlib.suppress(OSError):  # a container may forbid it; the limits still apply
        Path("/proc/self/oom_score_adj").write_text("1000")


def become_subreaper() -> None:
    """Become the parent of every descendant whose own parent ends."""
    check(libc().prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl(PR_SET_CHILD_SUBREAPER)")


def disable_core_dumps() -> None:
    """Write no core file, whatever ends this process."""
    check(libc().prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl(PR_SET_DUMPABLE)")


def set_no_new_privileges() -> None:
    """Prevent programs started from now on from gaining privileges by their files (set-user-id)."""
    check(libc().prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")


def restrict_capabilities(capabilities: Iterable[int]) -> None:
    """Drop every capability not listed, for this process and what it starts. Raises OSError."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    # effective, permitted, inheritable of capabilities 0 to 31, then of 32 to 63
    sets = (ctypes.c_uint32 * 6)()
    check(libc().capget(header, sets), "capget")
    bits = sets[1] & sum(1 << number for number in capabilities)
    check(libc().capset(header, (ctypes.c_uint32 * 6)(bits, bits, 0, 0, 0, 0)), "capset")
