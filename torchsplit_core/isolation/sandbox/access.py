"""Which paths a child may reach: determined by the parent from what the child runs and what the call names.

A folder is *wide* if it is, or contains, the user's home, the store, the temporary folder or the root.
A wide folder in `sys.path` is never made readable; only our own packages in it are.
"""

from __future__ import annotations

import glob
import os
import pwd
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from torchsplit_core import bundle
from torchsplit_core.values import InputFault, quoted

READABLE = "TORCHSPLIT_READABLE"
"""Environment variable: paths that every child may read, separated as in PATH."""
SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store",
    "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime", "/etc/timezone", "/etc/passwd",
    "/etc/group", "/etc/nsswitch.conf", "/etc/alternatives", "/etc/mime.types", "/etc/OpenCL",
    "/sys/devices/system", "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/cpu.max",
)  # fmt: skip
"""System paths that programs need; nothing in them is private to a user."""
SYSTEM_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
GPU_PATHS = ("/sys", "/etc/nvidia", "/run/nvidia", "/var/run/nvidia-persistenced")
GPU_DEVICES = ("/dev/nvidia*",)
MPS_FOLDER = "/tmp/nvidia-mps"
"""Where clients find CUDA's multi-process service, unless CUDA_MPS_PIPE_DIRECTORY is set (NVIDIA, "MPS")."""


@dataclass(frozen=True, slots=True)
class Access:
    """Absolute paths: `read` to read and execute, `write` to change as well, `devices` are device files."""

    read: tuple[str, ...]
    write: tuple[str, ...]
    devices: tuple[str, ...]
    path: tuple[str, ...]
    """The child's PYTHONPATH."""
    gpu: bool
    """Whether GPUs are among the devices."""
    packages: tuple[str, ...]
    """Folders of our packages that lie in a wide folder; the child finds them through links in its private folder."""


def access_of(
    environment: Mapping[str, str], readable: Iterable[str | Path] = (), writable: Iterable[str | Path] = ()
) -> Access:
    """What a child with this environment may reach: the system, Python, our packages and the given paths.

    Raises InputFault if a path in TORCHSPLIT_READABLE does not exist.
    """
    wide = _wide_folders()
    entries = list(dict.fromkeys(str(Path(entry or ".").resolve()) for entry in sys.path))
    narrow = [entry for entry in entries if not is_wide(entry, wide)]
    packages = _our_packages()
    hidden = tuple(folder for folder in packages if str(Path(folder).parent) not in narrow)
    libraries = [entry for entry in environment.get("LD_LIBRARY_PATH", "").split(os.pathsep) if entry]
    libraries += [environment["CUDA_HOME"]] if environment.get("CUDA_HOME") else []
    python = [sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix]
    python += [str(Path(sys.executable).parent), str(Path(sys.executable).resolve().parent)]
    gpu = _gpu_devices(environment)
    read = [
        *SYSTEM,
        *(path for path in (*python, *libraries) if not is_wide(path, wide)),
        *narrow,
        *packages,
        *(GPU_PATHS if gpu else ()),
        *named_readable(),
        *map(str, readable),
    ]
    return Access(
        read=_absolute(read),
        write=_absolute([*map(str, writable), *_mps_folders(environment, gpu)]),
        devices=_absolute([*SYSTEM_DEVICES, *gpu]),
        path=tuple(narrow),
        gpu=bool(gpu),
        packages=hidden,
    )


def named_readable() -> tuple[str, ...]:
    """The paths in TORCHSPLIT_READABLE. Raises InputFault for one that does not exist."""
    paths = [entry for entry in os.environ.get(READABLE, "").split(os.pathsep) if entry]
    for path in paths:
        if not os.path.lexists(Path(path).expanduser()):
            raise InputFault(
                READABLE, f"names {quoted(path)}, which does not exist", "Correct the path, or remove it."
            )
    return _absolute(paths)


def is_wide(folder: str | Path, private: Iterable[Path] | None = None) -> bool:
    """Whether a folder is, or contains, the user's home, the store, the temporary folder or the root."""
    resolved = Path(folder).resolve()
    return any(resolved == wide or resolved in wide.parents for wide in private or _wide_folders())


def readable_beside(file: str | Path) -> tuple[str, ...]:
    """What a Python file needs to import from its folder: the folder, or only its .py files if it is wide."""
    folder = Path(file).absolute().parent
    if not is_wide(folder):
        return (str(folder),)
    siblings: list[str] = []
    with suppress(OSError):
        siblings = [entry.path for entry in os.scandir(folder) if entry.name.endswith(".py")]
    return tuple(dict.fromkeys([str(Path(file).absolute()), *sorted(siblings)]))


def _wide_folders() -> set[Path]:
    homes = {os.path.expanduser("~")}
    with suppress(KeyError):
        homes.add(pwd.getpwuid(os.getuid()).pw_dir)
    data = os.environ.get("XDG_DATA_HOME") or os.path.join(os.path.expanduser("~"), ".local", "share")
    store = os.environ.get("TORCHSPLIT_HOME") or os.path.join(data, "torchsplit")
    shared = (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm")
    return {Path(path).resolve() for path in (*homes, store, *shared, "/")}


def _our_packages() -> tuple[str, ...]:
    """The folders of our packages that a child runs, wherever they were loaded from."""
    ours = (bundle.CORE, bundle.root() / "sample_models")
    return tuple(str(folder) for folder in ours if folder.is_dir())


def _gpu_devices(environment: Mapping[str, str]) -> list[str]:
    """The GPUs' device files, if any exist and the child may see one. Untested on hardware."""
    if environment.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1"):
        return []
    return [path for pattern in GPU_DEVICES for path in sorted(glob.glob(pattern))]


def _mps_folders(environment: Mapping[str, str], gpu: list[str]) -> list[str]:
    named = environment.get("CUDA_MPS_PIPE_DIRECTORY", MPS_FOLDER)
    return [path for path in (named, environment.get("CUDA_MPS_LOG_DIRECTORY", "")) if gpu and path]


def _absolute(paths: Iterable[str]) -> tuple[str, ...]:
    """The paths, absolute and without duplicates; links stay unresolved, because the child reads through them."""
    return tuple(dict.fromkeys(os.path.abspath(os.path.expanduser(path)) for path in paths if path))
