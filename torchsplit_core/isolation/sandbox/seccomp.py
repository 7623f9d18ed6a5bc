"""A permanent seccomp filter on calls that neither namespaces nor Landlock restrict; it needs no privilege.

- Sockets: vsock reaches the host of a virtual machine from any network namespace; Landlock leaves UDP and other
  programs' named sockets open. io_uring creates sockets that no filter sees, so it is refused.
- prlimit: a process may set the limits of any other process of its user, and so have it killed.
- Keys: a process inherits the keyring of the user's session.

A process keeps the open sockets that it inherited and may still change its own limits.
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
"""Socket families that a network namespace or a private mount tree confines."""

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
"""`struct sock_filter`: code, instructions to skip if true, to skip if false, value."""


class _FilterProgram(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]


def available() -> bool:
    """Whether this kernel accepts filters and the architecture's call numbers are known. Changes nothing."""
    if not sys.platform.startswith("linux") or platform.machine() not in _MACHINES:
        return False
    # A null filter: EFAULT if the kernel knows filters, EINVAL if not (seccomp(2)).
    libc().prctl(_PR_SET_SECCOMP, _MODE_FILTER, None, 0, 0)
    return ctypes.get_errno() == errno.EFAULT


def restrict(families: Sequence[int]) -> None:
    """Restrict this single-threaded process and what it starts to sockets of these families, permanently.

    Other sockets fail as without a network; keys, io_uring and the limits of other processes are refused. Programs
    for another architecture (32 bits) cannot run. Raises OSError.
    """
    steps = _filter_instructions(_MACHINES[platform.machine()], families)
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    program = _FilterProgram(len(steps), code)
    set_no_new_privileges()
    # Before Linux 5.16 a filter enabled speculation guards that slowed down all code, and so measurements.
    system_call(
        _MACHINES[platform.machine()]["seccomp"], "seccomp",
        ctypes.c_uint(_SET_MODE_FILTER), ctypes.c_uint(_SPEC_ALLOW), ctypes.byref(program),
    )  # fmt: skip


def _filter_instructions(numbers: dict[str, int], families: Sequence[int]) -> list[FilterInstruction]:
    """The filter: each part returns its decision, or falls through to the next with the call's number loaded."""
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
