"""Private namespaces (user, PID, network, IPC, mount): a tree with only the given files, and no other process.

They need no privilege if the kernel lets users create user namespaces. The tree is built as bubblewrap does: an empty
tmpfs becomes the root, the given paths are bind-mounted into it from the old root, and the old root is unmounted.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from torchsplit_core.isolation.sandbox.kernel import check, kernel_version, libc, system_call

# linux/sched.h
NEW_MOUNTS, NEW_IPC, NEW_USERS, NEW_PIDS, NEW_NETWORK = (
    0x00020000, 0x08000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
# sys/mount.h, linux/mount.h
NO_SUID, NO_DEVICES, NO_EXECUTION, BIND, RECURSIVE, PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
DETACH = 2
_MOUNT_SETATTR, _AT_RECURSIVE, _AT_FDCWD = 442, 0x8000, -100
_READ_ONLY, _NO_SUID = 1, 2
PIDS_IN_RESERVE = 300
"""PID numbers that a namespace uses only once (RESERVED_PIDS, kernel/pid.c)."""
TASKS_TO_SPARE = 16
"""The kernel refuses a fork this far above the limit, so that the monitor sees the limit exceeded first."""
MOST_LINKS = 40  # MAXSYMLINKS of linux/namei.h


def enter() -> bool:
    """Enter new namespaces; the next child of this process is PID 1 of the new one. Raises OSError.

    This process must have one thread. Returns True if all user ids of the caller are mapped inside (for root), False
    if only its own is.
    """
    uid, gid = os.geteuid(), os.getegid()
    maps_all_ids = _enter_as_root() if uid == 0 else False
    if uid != 0:
        check(libc().unshare(NEW_USERS), "unshare of the user namespace")
    if not maps_all_ids:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    check(libc().unshare(NEW_PIDS | NEW_NETWORK | NEW_IPC), "unshare")
    return maps_all_ids


def _enter_as_root() -> bool:
    """Enter a new user namespace; True if every id maps to itself, False if this root may map only its own.

    Only a process in the outer namespace can map more than one id: a child forked before.
    """
    ranges = {name: Path(f"/proc/self/{name}").read_text() for name in ("uid_map", "gid_map")}
    same = {
        name: "".join(f"{a} {a} {n}\n" for a, _, n in map(str.split, text.splitlines()))
        for name, text in ranges.items()
    }
    start_read, start_write = os.pipe()
    parent = os.getpid()
    helper = os.fork()
    if helper == 0:
        status = 1
        with contextlib.suppress(OSError):
            os.close(start_write)
            if os.read(start_read, 1):
                for name, text in same.items():
                    Path(f"/proc/{parent}/{name}").write_text(text)
                status = 0
        os._exit(status)
    os.close(start_read)
    try:
        check(libc().unshare(NEW_USERS), "unshare of the user namespace")
        os.write(start_write, b"1")
    finally:
        os.close(start_write)
        _, status = os.waitpid(helper, 0)
    return status == 0


@dataclass(frozen=True, slots=True)
class _BindMount:
    real: str
    writable: bool
    folder: bool


def build_tree(
    base: str,
    read: Iterable[str],
    write: Iterable[str],
    devices: Iterable[str],
    *,
    shared_bytes: int,
    tasks: int | None,
) -> None:
    """Give this process (PID 1 of its namespace) a root with only these paths, each at its original location.

    `base` is any folder. /proc is new and read-only, /dev/shm private with at most `shared_bytes`. Raises OSError.
    """
    binds, links = _plan_mounts(read, write, devices)
    os.umask(0o022)
    check(libc().unshare(NEW_MOUNTS), "unshare of the mounts")
    _mount(None, "/", None, RECURSIVE | PRIVATE)
    _mount("tmpfs", base, "tmpfs", NO_SUID | NO_DEVICES, "size=16m,mode=0755")
    old = os.path.join(base, ".old")
    os.mkdir(old)
    check(libc().pivot_root(base.encode(), old.encode()), "pivot_root")
    os.chdir("/")
    for place, target in links:
        if not os.path.lexists(place):
            os.makedirs(os.path.dirname(place), exist_ok=True)
            os.symlink(target, place)
    for bind in binds:
        _bind_mount(bind)
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{target}", f"/dev/{name}")
    for place, kind, option in (
        ("/proc", "proc", ""),
        ("/dev/shm", "tmpfs", f"size={shared_bytes},mode=1777"),
    ):
        os.makedirs(place, exist_ok=True)
        _mount(kind, place, kind, NO_SUID | NO_DEVICES | NO_EXECUTION, option)
    _limit_namespaces(tasks)
    _protect("/proc", recursive=False)
    check(libc().umount2(b"/.old", DETACH), "umount of the old root")
    os.rmdir("/.old")
    _protect("/", recursive=False)


def _plan_mounts(
    read: Iterable[str], write: Iterable[str], devices: Iterable[str]
) -> tuple[list[_BindMount], list[tuple[str, str]]]:
    """The bind mounts, outer folders first and without duplicates, and the links on the given paths."""
    wanted: dict[str, bool] = {}
    links: dict[str, str] = {}
    for paths, writable in ((read, False), (write, True), (devices, True)):
        for path in paths:
            real, path_links = _resolve_links(path)
            links |= path_links
            if real:
                wanted[real] = wanted.get(real, False) or writable
    binds: list[_BindMount] = []
    for real in sorted(wanted):
        enclosing = [bind for bind in binds if real.startswith(bind.real.rstrip("/") + "/")]
        if not enclosing or (wanted[real] and not enclosing[-1].writable):
            binds.append(_BindMount(real, wanted[real], os.path.isdir(real)))
    return binds, sorted(links.items())


def _resolve_links(path: str) -> tuple[str, dict[str, str]]:
    """The real path of an absolute path, "" if it does not exist, and the links on it with their targets."""
    resolved, remaining = "", [part for part in path.split("/") if part]
    links: dict[str, str] = {}
    while remaining:
        part = remaining.pop(0)
        if part == "..":
            resolved = os.path.dirname(resolved).rstrip("/")
            continue
        current = f"{resolved}/{part}"
        try:
            mode = os.lstat(current).st_mode
            if stat.S_ISLNK(mode):
                if len(links) >= MOST_LINKS:
                    return "", links
                links[current] = target = os.readlink(current)
                resolved = "" if target.startswith("/") else resolved
                remaining = [piece for piece in target.split("/") if piece not in ("", ".")] + remaining
                continue
        except OSError:
            return "", links
        resolved = current
    return resolved or "/", links


def _bind_mount(mount: _BindMount) -> None:
    if mount.folder:
        os.makedirs(mount.real, exist_ok=True)
    elif not os.path.lexists(mount.real):
        os.makedirs(os.path.dirname(mount.real), exist_ok=True)
        os.close(os.open(mount.real, os.O_CREAT | os.O_CLOEXEC, 0o644))
    _mount(f"/.old{mount.real}", mount.real, None, BIND | RECURSIVE)
    _protect(mount.real, writable=mount.writable)


def _protect(place: str, *, writable: bool = False, recursive: bool = True) -> None:
    """Disable set-user-id programs on a mount and, unless `writable`, make it read-only."""
    flags = ctypes.c_uint(_AT_RECURSIVE if recursive else 0)
    attributes = (ctypes.c_uint64 * 4)(_NO_SUID | (0 if writable else _READ_ONLY), 0, 0, 0)
    system_call(
        _MOUNT_SETATTR, f"mount_setattr of {place}",
        ctypes.c_int(_AT_FDCWD), place.encode(), flags, attributes, ctypes.c_size_t(ctypes.sizeof(attributes)),
    )  # fmt: skip


def _mount(source: str | None, place: str, kind: str | None, flags: int, option: str = "") -> None:
    encoded = [None if text is None else text.encode() for text in (source, place, kind)]
    result = libc().mount(*encoded, ctypes.c_ulong(flags), option.encode() or None)
    check(result, f"mount of {source or place}")


def _limit_namespaces(tasks: int | None) -> None:
    """Limits that the kernel enforces for these namespaces alone: no further user namespaces, at most `tasks` tasks.

    Call it with the new /proc, in the new user and PID namespaces: elsewhere it would change the whole machine.
    """
    with contextlib.suppress(OSError):
        Path("/proc/sys/user/max_user_namespaces").write_text("0")
    # pid_max is per PID namespace since 6.14; before, it applies to the whole machine.
    if tasks is not None and kernel_version() >= (6, 14):
        with contextlib.suppress(OSError):
            Path("/proc/sys/kernel/pid_max").write_text(str(tasks + TASKS_TO_SPARE + PIDS_IN_RESERVE))


def limit_tasks(tasks: int | None) -> None:
    """Have the kernel refuse tasks far above the limit. Works only in a private user namespace, and never for root."""
    if tasks is None or os.geteuid() == 0 or kernel_version() < (5, 14):
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    limit = tasks + TASKS_TO_SPARE
    top = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_NPROC, (top, top))


def shared_memory_bytes(total: int | None) -> int:
    """The size of /dev/shm: a quarter of the memory that the work may use, 1 GiB if that is unlimited."""
    return 2**30 if total is None else max(total // 4, 2**20)
