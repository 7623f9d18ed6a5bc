"""Landlock (Linux 5.13): a process gives up access to all files, TCP and signals except those it names.

Each ABI restricts more than the previous one (kernel.org, "Landlock: unprivileged access control");
`missing_protections` lists what the present ABI does not restrict.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import sys
from collections.abc import Iterable

from torchsplit_core.isolation.sandbox.kernel import check, libc, set_no_new_privileges, system_call

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
"""System call numbers; the same on every architecture."""
_CREATE_RULESET_VERSION = 1
_PATH_BENEATH = 1

# linux/landlock.h
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_ABI_1 = (1 << 13) - 1
TCP = 1 << 0 | 1 << 1
SCOPES = 1 << 0 | 1 << 1
"""Abstract unix sockets and signals to processes outside the sandbox."""
READ_RIGHTS = EXECUTE | READ_FILE | READ_DIR
FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV

_SINCE: tuple[tuple[int, str, bool], ...] = (
    (3, "cutting files it can name to length 0", False),
    (4, "TCP", True),
    (6, "abstract unix sockets", True),
    (6, "signals to your other processes", False),
)
"""Per protection: the ABI that introduced it, its description, and whether a socket filter covers it too."""


class _PathBeneath(ctypes.Structure):
    """`struct landlock_path_beneath_attr`, packed."""

    _pack_ = 1
    _fields_ = [("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32)]


def abi() -> int:
    """The ABI of this kernel's Landlock; 0 if it has none or does not offer it."""
    if not sys.platform.startswith("linux"):
        return 0
    try:
        return system_call(
            CREATE_RULESET, "landlock", None, ctypes.c_size_t(0), ctypes.c_uint32(_CREATE_RULESET_VERSION)
        )
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EACCES):
            return 0
        raise


def missing_protections(version: int, *, sockets_held: bool) -> tuple[str, ...]:
    """Descriptions of what newer ABIs restrict but this one does not, without what a socket filter covers."""
    return tuple(
        words for since, words, socket in _SINCE if version < since and not (socket and sockets_held)
    )


def restrict(version: int, read: Iterable[str], write: Iterable[str], devices: Iterable[str] = ()) -> None:
    """Restrict this single-threaded process and what it starts to these paths, permanently.

    `read`: files, and folders with their contents, to read and execute; `write`: to change as well; `devices`: to read,
    write and control. Paths that do not exist are skipped. Raises OSError.
    """
    files = _ABI_1
    for since, right in ((2, REFER), (3, TRUNCATE), (5, IOCTL_DEV)):
        files |= right if version >= since else 0
    handled = [files, TCP if version >= 4 else 0, SCOPES if version >= 6 else 0]
    size = 8 * (3 if version >= 6 else 2 if version >= 4 else 1)
    set_no_new_privileges()
    ruleset = system_call(
        CREATE_RULESET, "landlock_create_ruleset",
        (ctypes.c_uint64 * 3)(*handled), ctypes.c_size_t(size), ctypes.c_uint32(0),
    )  # fmt: skip
    try:
        device_rights = READ_FILE | WRITE_FILE | READ_DIR | IOCTL_DEV
        for paths, rights in ((read, READ_RIGHTS), (write, files & ~IOCTL_DEV), (devices, device_rights)):
            for path in paths:
                _allow(ruleset, path, rights & files)
        system_call(RESTRICT_SELF, "landlock_restrict_self", ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return  # what this process cannot reach needs no rule
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= FILE_RIGHTS
        rule = _PathBeneath(rights, descriptor)
        call = libc().syscall
        call.restype = ctypes.c_long
        check(
            call(
                ctypes.c_long(ADD_RULE), ctypes.c_int(ruleset), ctypes.c_int(_PATH_BENEATH), ctypes.byref(rule),
                ctypes.c_uint32(0),
            ),
            f"landlock_add_rule for {path}",
        )  # fmt: skip
    finally:
        os.close(descriptor)
