"""A seccomp filter on system calls that neither namespaces nor Landlock hold, for good; it needs no privilege.

- Sockets: vsock reaches the host of a virtual machine from any network namespace; under Landlock UDP and the named
  sockets of other programs stay open. Rings of io_uring make sockets that no filter sees, so there are none.
- prlimit: a process may set the limits of any other of its user, and so have it killed.
- Keys: the keyring of the user's session is inherited.

What a process was given (open sockets, its own limits) stays its own.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
import sys
from collections.abc import Sequence

from torchsplit_core.isolation.sandbox.kernel import libc, set_no_new_privileges, system_call

UNIX, INET, INET6, NETLINK = 1, 2, 10, 16
NAMESPACE_FAMILIES = (UNIX, INET, INET6, NETLINK)
"""Families that a network namespace, or a tree of one's own, holds."""

# linux/audit.h (AUDIT_ARCH_…) and asm/unistd.h
_MACHINES = {
    "x86_64": {
        "machine": 0xC000003E, "seccomp": 317, "socket": 41, "prlimit64": 302,
        "add_key": 248, "request_key": 249, "keyctl": 250,
    },
    "aarch64": {
        "machine": 0xC00000B7, "seccomp": 277, "socket": 198, "prlimit64": 261,
        "add_key": 217, "request_key": 218, "keyctl": 219,
    },
}  # fmt: skip
_IO_URING_SETUP = 425
_X32 = 0x40000000
# linux/bpf_common.h, linux/seccomp.h, linux/prctl.h
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_SET_MODE_FILTER, _SPEC_ALLOW = 1, 4
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_NUMBER_AT, _MACHINE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16

FilterInstruction = tuple[int, int, int, int]
"""`struct sock_filter`: code, steps to skip where it holds, where it does not, value."""


class _FilterProgram(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]


def available() -> bool:
    """Whether this kernel takes filters, on a machine whose calls are known here. Changes nothing."""
    if not sys.platform.startswith("linux") or platform.machine() not in _MACHINES:
        return False
    # A filter at no address: EFAULT where filters are known, EINVAL where they are not (seccomp(2)).
    libc().prctl(_PR_SET_SECCOMP, _MODE_FILTER, None, 0, 0)
    return ctypes.get_errno() == errno.EFAULT


def restrict(families: Sequence[int]) -> None:
    """From now on this process (of one thread) and what it starts make sockets of these families alone.

    Others fail as without a network; keys, rings and the limits of other processes are refused. Programs for
    another machine (32 bits) cannot run. Raises OSError.
    """
    steps = _filter_instructions(_MACHINES[platform.machine()], families)
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    program = _FilterProgram(len(steps), code)
    set_no_new_privileges()
    # Before Linux 5.16 a filter slowed all code down by guarding it against speculation, measurements too.
    system_call(
        _MACHINES[platform.machine()]["seccomp"], "seccomp",
        ctypes.c_uint(_SET_MODE_FILTER), ctypes.c_uint(_SPEC_ALLOW), ctypes.byref(program),
    )  # fmt: skip


def _filter_instructions(numbers: dict[str, int], families: Sequence[int]) -> list[FilterInstruction]:
    """The filter: each part returns what it decides, or falls through to the next with the call's number loaded."""
    steps: list[FilterInstruction] = [
        (_LOAD, 0, 0, _MACHINE_AT),
        (_EQUAL, 1, 0, numbers["machine"]),
        (_RETURN, 0, 0, _FAIL | errno.ENOSYS),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _FAIL | errno.ENOSYS),
        (_EQUAL, 0, 1, _IO_URING_SETUP),
        (_RETURN, 0, 0, _FAIL | errno.ENOSYS),
    ]
    for name in ("add_key", "request_key", "keyctl"):
        steps += [(_EQUAL, 0, 1, numbers[name]), (_RETURN, 0, 0, _FAIL | errno.EPERM)]
    for name, allowed, error in (
        ("prlimit64", (0,), errno.EPERM),
        ("socket", tuple(families), errno.ENETUNREACH),
    ):
        steps += [
            (_EQUAL, 0, len(allowed) + 3, numbers[name]),
            (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
            *((_EQUAL, len(allowed) - index, 0, value) for index, value in enumerate(allowed)),
            (_RETURN, 0, 0, _FAIL | error),
            (_RETURN, 0, 0, _ALLOW),
        ]
    return [*steps, (_RETURN, 0, 0, _ALLOW)]
