"""One server a slice: while one serves, its cores and GPUs are locked for the other processes of its user on this host.

A lock is the kernel's (flock), so it ends with its process however that ends; the files stay and say nothing. They are
in a folder that nobody else may write to.
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
    """With the devices of these slices locked. Raises InputFault where another process has one of them."""
    with ExitStack() as locks:
        folder = _lock_folder()
        for bound_slice in slices:
            for name, description in _lock_names(bound_slice):
                _lock(
                    locks, folder / f"{re.sub(r'[^a-zA-Z0-9.-]', '_', name)}.lock", bound_slice, description
                )
        yield


def _lock_names(bound_slice: BoundSlice) -> Iterator[tuple[str, str]]:
    """What a slice stands on, as a name and in words."""
    for core in bound_slice.cores:
        yield f"core-{core}", f"core {core} of this host"
    if bound_slice.device.uuid:
        yield bound_slice.device.uuid, bound_slice.device.uuid


def _lock_folder() -> Path:
    """Where this user's locks are on this host. Raises InputFault where it is no folder of this user's alone."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    # It is named, and not there, where a shell was entered by `su` or a job by a scheduler.
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
