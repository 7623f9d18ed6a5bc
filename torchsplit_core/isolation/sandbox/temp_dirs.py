"""Private temporary folders that name their owner, so that those of a killed process can be swept.

A room is `torchsplit-PID-BORN-xxxxxxxx` in the temporary folder, of mode 0700. BORN joins the kernel's boot, the
PID namespace and the tick at which the owner was born: a room is removed only where all three are known here, for
another container may share the folder and number its processes on its own.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = "torchsplit-"
STALE_S = 24 * 3600.0
"""A room of an earlier version, which names no owner, is rubbish once it is older than this."""
FOREIGN_STALE_S = 7 * STALE_S
"""So is one whose owner lived in another PID namespace or boot, of which nothing can be known here."""
_OWNED_NAME = re.compile(r"torchsplit-(\d+)-([0-9a-f]{8})t(\d+)-[a-z0-9_]{8}")
_UNOWNED_NAME = re.compile(r"torchsplit-[a-z0-9_]{8}")


@contextmanager
def private_temp_dir() -> Iterator[Path]:
    """A new empty folder of this process alone; removed with all in it at the end."""
    path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-{_pid_space()}t{_start_ticks(os.getpid())}-"))
    try:
        yield path
    finally:
        remove_tree(path)


def remove_stale_temp_dirs() -> int:
    """Remove this user's rooms whose owner is gone, and nameless ones older than a day; how many.

    A room is left where its owner may live in another PID namespace or on another machine that shares the folder,
    until it is a week old. A link is never followed.
    """
    removed = 0
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            status = path.lstat()
            is_own_folder = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
            if is_own_folder and _is_stale(path.name, time.time() - status.st_mtime):
                remove_tree(path)
                removed += not path.exists()
    return removed


def _is_stale(name: str, age_s: float) -> bool:
    if match := _OWNED_NAME.fullmatch(name):
        pid, pid_space, start_ticks = int(match[1]), match[2], match[3]
        return _start_ticks(pid) != start_ticks if pid_space == _pid_space() else age_s > FOREIGN_STALE_S
    return bool(_UNOWNED_NAME.fullmatch(name)) and age_s > STALE_S


def _pid_space() -> str:
    """What numbers processes here: this boot and this PID namespace, as eight hexadecimal digits."""
    identity = ""
    with contextlib.suppress(OSError):
        identity = Path("/proc/sys/kernel/random/boot_id").read_text() + str(
            Path("/proc/self/ns/pid").readlink()
        )
    return f"{zlib.crc32(identity.encode()):08x}"


def _start_ticks(pid: int) -> str:
    """When the process started, in the kernel's ticks; "0" where there is none of that number."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "0"


def remove_tree(folder: Path) -> None:
    """Remove a folder and all in it, however deep, whatever its modes; follows no link.

    Folders are first moved up into the room, so that no depth needs more than two descriptors. What cannot be
    removed (another user's, a mount) is left.
    """
    with contextlib.suppress(OSError):
        top = _open_folder(str(folder), None)
        try:
            token, number, moved = os.urandom(8).hex(), 0, True
            while moved:
                moved = False
                for name in os.listdir(top):
                    if not _try_unlink(name, top):
                        inner = _open_folder(name, top)
                        try:
                            for entry in os.listdir(inner):
                                if not _try_unlink(entry, inner):
                                    os.close(_open_folder(entry, inner))  # its mode may forbid the move
                                    os.rename(entry, f".{token}-{number}", src_dir_fd=inner, dst_dir_fd=top)
                                    number, moved = number + 1, True
                        finally:
                            os.close(inner)
                        os.rmdir(name, dir_fd=top)
        finally:
            os.close(top)
        folder.rmdir()


def _open_folder(name: str, parent: int | None) -> int:
    """A folder by its name, made readable and writable for its owner; never through a link. Raises OSError."""
    handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        handle_path = f"/proc/self/fd/{handle}"
        if os.fstat(handle).st_mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(handle_path, stat.S_IRWXU)
        return os.open(handle_path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(handle)


def _try_unlink(name: str, parent: int) -> bool:
    """Whether the entry was no folder and is gone."""
    try:
        os.unlink(name, dir_fd=parent)
    except (IsADirectoryError, PermissionError):
        return False
    return True
