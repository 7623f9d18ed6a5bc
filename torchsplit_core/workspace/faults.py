"""Faults of the folder of the workspaces, each as one message that says what still works."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Literal

from torchsplit_core.values import InputFault, quoted
from torchsplit_core.values.units import GIB, MIB

WHERE = "workspace folder"
MIN_FREE_BYTES = 16 * 2**20
"""With less free space the next result may not fit: SQLite, a graph and a log each take some MiB."""

QUOTA_VARIABLE = "TORCHSPLIT_WORKSPACE_QUOTA_GIB"
DEFAULT_QUOTA_GIB = 4.0
"""Default limit of the results and uploads of a workspace."""

StoreFaultKind = Literal["full", "read-only", "busy", "damaged", "unusable"]


class StoreFault(InputFault):
    """The store cannot do what was requested; `kind` says why."""

    def __init__(self, kind: StoreFaultKind, problem: str, remedy: str) -> None:
        super().__init__(WHERE, problem, remedy)
        self.kind = kind


def disk_full_fault(root: Path, error: object) -> StoreFault:
    """No space on the disk; stored contents are unchanged."""
    return StoreFault(
        "full",
        f"{root} has no room left on its disk ({error})",
        "Everything stored can still be read and deleted. Free some space, or delete a workspace, and try again.",
    )


def read_only_fault(root: Path, error: object) -> StoreFault:
    """The folder or its file system is read-only."""
    return StoreFault(
        "read-only",
        f"{root} cannot be written ({error})",
        "Everything stored can still be read. Make it writable, or set TORCHSPLIT_HOME to another folder.",
    )


def is_full(error: OSError) -> bool:
    """Whether the disk, or this user's quota of it, is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def fault_from_os_error(root: Path, error: OSError) -> StoreFault:
    """The fault of a failed system call on a file of the store."""
    if is_full(error):
        return disk_full_fault(root, error.strerror)
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return read_only_fault(root, error.strerror)
    return StoreFault(
        "unusable",
        f"{root} cannot be read or written ({error.strerror or error})",
        "Look at the disk, or set TORCHSPLIT_HOME to another folder.",
    )


def disk_problem(root: Path) -> str | None:
    """A sentence for the head of a page if nothing more can be stored under `root`; otherwise None."""
    try:
        facts = os.statvfs(root)
    except OSError as error:
        return f"The workspace folder cannot be reached ({error.strerror}): nothing can be read or stored."
    if facts.f_flag & os.ST_RDONLY or not os.access(root, os.W_OK):
        return "The workspace folder is read-only: everything stored can be read, nothing can be changed or stored."
    free = free_bytes(root)
    if free < MIN_FREE_BYTES or (facts.f_files and not facts.f_ffree):
        return (
            f"The disk of the workspace folder is full ({free / 2**20:.1f} MiB left): everything stored can be read "
            "and deleted, but nothing new may be stored. Free some space, or delete a workspace."
        )
    return None


def free_bytes(root: Path) -> int:
    """Bytes that this user may still write to the disk of `root`; root may use reserved blocks. Raises OSError."""
    facts = os.statvfs(root)
    return (facts.f_bfree if os.geteuid() == 0 else facts.f_bavail) * facts.f_frsize


def quota_bytes() -> int:
    """The limit of a workspace. Raises InputFault if the environment variable is no number above 0."""
    setting = os.environ.get(QUOTA_VARIABLE) or str(DEFAULT_QUOTA_GIB)
    try:
        gib = float(setting)
    except ValueError:
        gib = 0.0
    if not 0 < gib < 2**30:  # also NaN
        raise InputFault(
            QUOTA_VARIABLE,
            f"is {quoted(setting)}, not a number of GiB above 0",
            f"Give for example {DEFAULT_QUOTA_GIB:g}.",
        )
    return round(gib * GIB)


def check_quota(before: int, after: int) -> None:
    """Raise InputFault if storing grows a workspace (`before`: 0 for a new one) beyond its quota.

    Storing what does not grow it is always allowed.
    """
    if after <= max(before, quota := quota_bytes()):
        return
    holds = f"holds {format_bytes(before)} and would hold" if before else "would hold"
    less = "Remove results or uploads from it" if before else "Store less at once"
    raise InputFault(
        "workspace",
        f"{holds} {format_bytes(after)}, above its quota of {format_bytes(quota)}",
        f"{less}, or have who runs the server raise {QUOTA_VARIABLE}.",
    )


def format_bytes(size: int) -> str:
    """Bytes for people: "3.2 GiB", "0.5 MiB"."""
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / MIB:.1f} MiB"
