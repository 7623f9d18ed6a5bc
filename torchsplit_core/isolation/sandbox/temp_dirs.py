"""Private temporary folders that name their owner, so that those of a killed process can be removed.

A private folder is `torchsplit-PID-BORN-xxxxxxxx` in the temporary folder, with mode 0700. BORN combines the kernel's
boot, the PID namespace and the tick at which the owner started. Only a folder of this boot and namespace is checked for
its owner: another container may share the temporary folder but number its processes independently.
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
"""Age from which a folder of an earlier version, which names no owner, is stale."""
FOREIGN_STALE_S = 7 * STALE_S
"""Age from which a folder is stale if its owner belongs to another PID namespace or boot and cannot be checked."""
_OWNED_NAME = re.compile(r"torchsplit-(\d+)-([0-9a-f]{8})t(\d+)-[a-z0-9_]{8}")
_UNOWNED_NAME = re.compile(r"torchsplit-[a-z0-9_]{8}")


@contextmanager
def private_temp_dir() -> Iterator[Path]:
    """A new empty folder private to this process; removed with its contents on exit."""
    path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-{_pid_space()}t{_start_ticks(os.getpid())}-"))
    try:
        yield path
    finally:
        remove_tree(path)


def remove_stale_temp_dirs() -> int:
    """Remove this user's folders whose owner is gone, and ownerless ones older than a day; returns how many.

    A folder stays until it is a week old if its owner may live in another PID namespace or on another machine that
    shares the temporary folder. Links are never followed.
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
    """The scope of process ids: a hash of this boot and PID namespace, as eight hexadecimal digits."""
    identity = ""
    with contextlib.suppress(OSError):
        identity = Path("/proc/sys/kernel/random/boot_id").read_text() + str(
            Path("/proc/self/ns/pid").readlink()
        )
    return f"{zlib.crc32(identity.encode()):08x}"


def _start_ticks(pid: int) -> str:
    """When the process started, in the kernel's ticks; "0" if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "0"


def remove_tree(folder: Path) -> None:
    """Remove a folder and its contents, at any depth and with any modes; follows no link.

    Inner folders are first moved up to the top, so that no depth needs more than two descriptors. What cannot be
    removed (another user's, a mount) stays.
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
                                    os.close(_open_folder(entry, inner))  # its mode may forbid moving it
                                    os.rename(entry, f".{token}-{number}", src_dir_fd=inner, dst_dir_fd=top)
                                    number, moved = number + 1, True
                        finally:
                            os.close(inner)
                        os.rmdir(name, dir_fd=top)
        finally:
            os.close(top)
        folder.rmdir()


def _open_folder(name: str, parent: int | None) -> int:
    """Open a folder by name and make it accessible to its owner; never follows a link. Raises OSError."""
    handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        handle_path = f"/proc/self/fd/{handle}"
        if os.fstat(handle).st_mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(handle_path, stat.S_IRWXU)
        return os.open(handle_path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(handle)


def _try_unlink(name: str, parent: int) -> bool:
    """Unlink an entry; False if it is a folder."""
    try:
        os.unlink(name, dir_fd=parent)
    except (IsADirectoryError, PermissionError):
        return False
    return True
