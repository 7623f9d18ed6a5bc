"""Locks among the processes of this user on this host, each a file with the holder's process id.

The kernel's locks (flock) end with their process, however that ends; the files stay, in a folder that only this user
may write to.
"""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from torchsplit_core.values import InputFault, system_reason


def user_lock(name: str, locks: ExitStack, taken: Callable[[str], InputFault]) -> None:
    """Hold the lock of that name until `locks` ends.

    Raises the fault that `taken` makes of "process 4711" (or "another process") where one holds it, and InputFault
    where locks cannot be kept.
    """
    path = _folder() / f"{re.sub(r'[^a-zA-Z0-9.-]', '_', name)}.lock"
    try:
        stream = os.fdopen(
            os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+", encoding="utf-8"
        )
        locks.enter_context(stream)
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = stream.read(20).strip()
            raise taken(f"process {pid}" if pid.isdigit() else "another process") from None
        stream.truncate(0)
        stream.write(str(os.getpid()))
        stream.flush()
    except OSError as error:
        raise _unusable(path, system_reason(error)) from error


def _folder() -> Path:
    """The folder of this user's locks. Raises InputFault if others may write to it."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    # After `su` and in jobs of a scheduler the variable may name a folder that does not exist.
    if base and os.access(base, os.W_OK | os.X_OK):
        folder = Path(base) / "torchsplit"
    else:
        folder = Path(tempfile.gettempdir()) / f"torchsplit-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise _unusable(folder, system_reason(error)) from error
    if status.st_uid != os.getuid() or status.st_mode & 0o170077 != 0o040000:
        raise _unusable(folder, "it is no folder that this user alone may write to")
    return folder


def _unusable(folder: Path, why: str) -> InputFault:
    return InputFault(
        str(folder),
        f"cannot hold locks: {why}",
        "Remove it, or set XDG_RUNTIME_DIR to a folder of your own.",
    )
