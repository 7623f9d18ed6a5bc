"""Locks the cores and GPUs of served slices against the user's other processes on this host.

The kernel's locks (flock) end with their process, however that ends; the files stay, in a folder that only this user
may write to.
"""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from torchsplit_core.serving.plan import BoundSlice
from torchsplit_core.values import InputFault, system_reason


@contextmanager
def lock_devices(slices: Iterable[BoundSlice]) -> Iterator[None]:
    """Lock the devices of the slices. Raises InputFault if another process holds one."""
    with ExitStack() as locks:
        folder = _lock_folder()
        for bound_slice in slices:
            for name, description in _lock_names(bound_slice):
                _lock(
                    locks, folder / f"{re.sub(r'[^a-zA-Z0-9.-]', '_', name)}.lock", bound_slice, description
                )
        yield


def _lock_names(bound_slice: BoundSlice) -> Iterator[tuple[str, str]]:
    """Name and description of each device of a slice."""
    for core in bound_slice.cores:
        yield f"core-{core}", f"core {core} of this host"
    if bound_slice.device.uuid:
        yield bound_slice.device.uuid, bound_slice.device.uuid


def _lock_folder() -> Path:
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
        f"cannot hold the locks of slices: {why}",
        "Remove it, or set XDG_RUNTIME_DIR to a folder of your own.",
    )


def _lock(locks: ExitStack, path: Path, bound_slice: BoundSlice, description: str) -> None:
    try:
        stream = os.fdopen(
            os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+", encoding="utf-8"
        )
        locks.enter_context(stream)
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            process = f"process {pid}" if (pid := stream.read(20).strip()).isdigit() else "another process"
            raise InputFault(
                f"slice {bound_slice.id}",
                f"is taken: {process} serves on {description}",
                "Stop that process, or serve where the slice is free; --stand-in cpu shares cores with others.",
            ) from None
        stream.truncate(0)
        stream.write(str(os.getpid()))
        stream.flush()
    except OSError as error:
        raise _unusable(path, system_reason(error)) from error
