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
OLD_S = 24 * 3600.0
"""A room of an earlier version, which names no owner, is rubbish once it is older than this."""
OLD_ELSEWHERE_S = 7 * OLD_S
"""So is one whose owner lived in another PID namespace or boot, of which nothing can be known here."""
_OWNED = re.compile(r"torchsplit-(\d+)-([0-9a-f]{8})t(\d+)-[a-z0-9_]{8}")
_NAMELESS = re.compile(r"torchsplit-[a-z0-9_]{8}")


@contextmanager
def private_room() -> Iterator[Path]:
    """A new empty folder of this process alone; removed with all in it at the end."""
    path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-{_space()}t{_born(os.getpid())}-"))
    try:
        yield path
    finally:
        remove(path)


def sweep_rooms() -> int:
    """Remove this user's rooms whose owner is gone, and nameless ones older than a day; how many.

    A room is left where its owner may live in another PID namespace or on another machine that shares the folder,
    until it is a week old. A link is never followed.
    """
    removed = 0
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            found = path.lstat()
            mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
            if mine and _is_rubbish(path.name, time.time() - found.st_mtime):
                remove(path)
                removed += not path.exists()
    return removed


def _is_rubbish(name: str, age_s: float) -> bool:
    if owned := _OWNED.fullmatch(name):
        pid, space, born = int(owned[1]), owned[2], owned[3]
        return _born(pid) != born if space == _space() else age_s > OLD_ELSEWHERE_S
    return bool(_NAMELESS.fullmatch(name)) and age_s > OLD_S


def _space() -> str:
    """What numbers processes here: this boot and this PID namespace, as eight hexadecimal digits."""
    told = ""
    with contextlib.suppress(OSError):
        told = Path("/proc/sys/kernel/random/boot_id").read_text() + str(Path("/proc/self/ns/pid").readlink())
    return f"{zlib.crc32(told.encode()):08x}"


def _born(pid: int) -> str:
    """When the process started, in the kernel's ticks; "0" where there is none of that number."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "0"


def remove(room: Path) -> None:
    """Remove a folder and all in it, however deep, whatever its modes; follows no link.

    Folders are first moved up into the room, so that no depth needs more than two descriptors. What cannot be
    removed (another user's, a mount) is left.
    """
    with contextlib.suppress(OSError):
        top = _opened(str(room), None)
        try:
            token, number, moved = os.urandom(8).hex(), 0, True
            while moved:
                moved = False
                for name in os.listdir(top):
                    if not _unlinked(name, top):
                        inner = _opened(name, top)
                        try:
                            for entry in os.listdir(inner):
                                if not _unlinked(entry, inner):
                                    os.close(_opened(entry, inner))  # its mode may forbid the move
                                    os.rename(entry, f".{token}-{number}", src_dir_fd=inner, dst_dir_fd=top)
                                    number, moved = number + 1, True
                        finally:
                            os.close(inner)
                        os.rmdir(name, dir_fd=top)
        finally:
            os.close(top)
        room.rmdir()


def _opened(name: str, within: int | None) -> int:
    """A folder by its name, made readable and writable for its owner; never through a link. Raises OSError."""
    place = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=within)
    try:
        own = f"/proc/self/fd/{place}"
        if os.fstat(place).st_mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(own, stat.S_IRWXU)
        return os.open(own, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(place)


def _unlinked(name: str, within: int) -> bool:
    """Whether the entry was no folder and is gone."""
    try:
        os.unlink(name, dir_fd=within)
    except (IsADirectoryError, PermissionError):
        return False
    return True
