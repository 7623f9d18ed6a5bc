"""The parent's side of isolation: start a confined child, read which limit it exceeded, end it and its descendants."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from torchsplit_core.isolation.limits import Limits
from torchsplit_core.isolation.sandbox import seccomp
from torchsplit_core.isolation.sandbox.access import Access, access_of
from torchsplit_core.isolation.sandbox.level import IsolationLevel, isolation_level

INHERITED_ENVIRONMENT = (
    "PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES",
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "HF_HOME", "TORCH_HOME", "TORCHSPLIT_EXECUTION",
)  # fmt: skip
END_S = 15.0
"""Seconds that a supervisor may take to end its processes before it is killed itself."""
WORK_FOLDER, LINKS_FOLDER = "work", "packages"
"""Folders in a private folder: the child's working directory, and links to our packages if their folder is hidden."""


class ConfinedChild:
    """A started child: its supervisor's process and the pipe that reports an exceeded limit."""

    def __init__(self, process: subprocess.Popen[bytes], verdict: int) -> None:
        self.process, self._verdict = process, verdict

    def exceeded_limit(self) -> dict[str, Any] | None:
        """The limit that the supervisor found exceeded, {"limit", "value"}; None if there is none."""
        try:
            data = os.read(self._verdict, 4096)
            excess = json.loads(data) if data else None
        except (OSError, ValueError):
            return None
        return excess if isinstance(excess, dict) else None

    def end(self) -> int:
        """End the child and all it started, and return its exit status as `Popen` does. Idempotent."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGTERM)
                # A stopped process does not handle SIGTERM until it continues.
                os.kill(self.process.pid, signal.SIGCONT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(END_S)
        if self.process.returncode is None:
            # It is not reaped yet, so no other process group can have its id.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.wait()

    def close(self) -> None:
        """Close the descriptor. Idempotent."""
        if self._verdict >= 0:
            os.close(self._verdict)
            self._verdict = -1


def launch(
    target: str,
    arguments: Mapping[str, Any],
    private_folder: Path,
    *,
    limits: Limits,
    answers: int,
    output: int | IO[bytes],
    environment: Mapping[str, str] | None = None,
    readable: Iterable[str | Path] = (),
    writable: Iterable[str | Path] = (),
    descriptors: Iterable[int] = (),
) -> ConfinedChild:
    """Start `target` ("module:function") in a child at this process's isolation level.

    `answers` is the descriptor that the child answers on; `descriptors` are inherited as well. The child ends with the
    thread that calls this. Raises InputFault if the level is not available.
    """
    level = isolation_level()
    work = private_folder / WORK_FOLDER
    work.mkdir()
    child_environment = {**_environment(str(work)), **(environment or {})}
    writable = [str(Path(path).absolute()) for path in writable]
    access = access_of(child_environment, readable, writable)
    child_environment["PYTHONPATH"] = os.pathsep.join(_import_path(access, private_folder))
    verdict_read, verdict = os.pipe()
    request = {
        "target": target,
        "arguments": dict(arguments),
        "limits": asdict(limits),
        "level": level.name,
        "abi": level.landlock_abi,
        "families": _socket_families(level, access),
        "access": {"read": access.read, "write": access.write, "devices": access.devices},
        "room": str(private_folder),
        "folder": str(work),
        "watched": [str(private_folder), *writable],
        "caller": os.getpid(),
    }
    try:
        # The request goes through a file: a pipe could block on a child that never reads.
        with tempfile.TemporaryFile() as request_file:
            request_file.write(json.dumps(request).encode())
            request_file.seek(0)
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "torchsplit_core.isolation.child", str(answers), str(verdict)],
                stdin=request_file,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(answers, verdict, *descriptors),
                cwd=work,
                env=child_environment,
                start_new_session=True,
            )
    except OSError:
        os.close(verdict_read)
        raise
    finally:
        os.close(verdict)
    os.set_blocking(verdict_read, False)
    return ConfinedChild(process, verdict_read)


def _environment(work: str) -> dict[str, str]:
    """The few variables that a child needs; home and temporary files are in its own directory."""
    inherited = {name: os.environ[name] for name in INHERITED_ENVIRONMENT if name in os.environ}
    private = {"HOME": work, "TMPDIR": work, "USER": "torchsplit", "LOGNAME": "torchsplit"}
    # Each further malloc arena reserves 64 MiB of the address space that memory_bytes limits.
    return inherited | private | {"MALLOC_ARENA_MAX": "2", "PYTHONUNBUFFERED": "1"}


def _socket_families(level: IsolationLevel, access: Access) -> tuple[int, ...] | None:
    """The socket families that a child may create; None for no filter. MPS needs a unix socket."""
    if not level.sockets_held:
        return None
    if level.name == "namespaces":
        return seccomp.NAMESPACE_FAMILIES
    return (seccomp.UNIX,) if access.gpu else ()


def _import_path(access: Access, private_folder: Path) -> list[str]:
    """The child's module search path: our packages first, through links if their parent folder is hidden."""
    if not access.packages:
        return list(access.path)
    links = private_folder / LINKS_FOLDER
    links.mkdir()
    for package in access.packages:
        (links / Path(package).name).symlink_to(package)
    return [str(links), *access.path]
