"""Processes of jobs forked from one that has loaded what most of them need: to load it takes longer than most plans.

One process a server, started ahead, loads it, runs nothing itself, and forks a child for every job that is asked of
it: from there on the child is what `python -m` would have started, with the same arguments, environment, input, log
and a session of its own. It ends with the server; the jobs go on. Where it is not ready, or the system is not Linux,
Python is started for a job.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from torchsplit_core.bundle import python_path
from torchsplit_core.jobs.job_kinds import JOBS, kind_of

PRELOADED = (
    "torchsplit_core.jobs.runner", "torchsplit_core.files.file_models", "torchsplit_core.planning.explanation.explain",
    "torchsplit_core.latency_slo.slo_planner", "torchsplit_core.workspace.versions", "pydantic.dataclasses",
)  # fmt: skip
"""What jobs load while they run, beside the modules of their kinds; none of it loads torch."""
MAX_MESSAGE_BYTES = 2**17
"""Of what is asked for a job; the environment is most of it. For a longer one Python is started."""
FORK_FAILED = -1
"""The process id that says that no process could be made."""


class ForkServer:
    """The process that forks, as its server sees it."""

    def __init__(self) -> None:
        self._socket, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        with server_end:
            self.process = subprocess.Popen(
                [sys.executable, "-c", f"from {__name__} import main; main()", str(server_end.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(server_end.fileno(),),
                # Ctrl-C is for the server: this ends when the server has.
                start_new_session=True,
                # A thread that is not in the child would be waited for in vain.
                env=os.environ | {"PYTHONPATH": python_path(), "OPENBLAS_NUM_THREADS": "1"},
            )
        self._loaded = False

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], stdin: int, log: int
    ) -> int | None:
        """Fork `python -m command`, which reads `stdin` and prints into `log`; its process id, None where this is
        not ready or has ended."""
        message = json.dumps({"command": command, "environment": dict(environment)}).encode()
        with self._lock:
            if len(message) > MAX_MESSAGE_BYTES or not self._is_loaded():
                return None
            with contextlib.suppress(OSError, ValueError):
                socket.send_fds(self._socket, [message], [stdin, log])
                child = int(self._socket.recv(MAX_MESSAGE_BYTES))
                return None if child == FORK_FAILED else child
        return None

    def wait(self) -> None:
        """Until it is ready, or has ended."""
        with self._lock, contextlib.suppress(OSError):
            self._loaded = self._loaded or bool(self._socket.recv(MAX_MESSAGE_BYTES))

    def end(self) -> None:
        """End it; the jobs go on."""
        self._socket.close()
        self.process.wait()

    def _is_loaded(self) -> bool:
        with contextlib.suppress(OSError):
            self._loaded = self._loaded or bool(self._socket.recv(MAX_MESSAGE_BYTES, socket.MSG_DONTWAIT))
        return self._loaded


_servers: list[ForkServer] = []
"""Of this process: none or one."""


def prepare() -> None:
    """Have jobs of this process be forked, once the process that does it has loaded what they need."""
    if not _servers and sys.platform == "linux":
        _servers.append(ForkServer())


def fork_process(command: Sequence[str], environment: Mapping[str, str], stdin: int, log: int) -> int | None:
    """The process id of `python -m command`, forked; None where nothing is there to fork it."""
    return _servers[0].start(command, environment, stdin, log) if _servers else None


def main() -> None:
    """Load, then fork a child for every question until the server ends."""
    from torchsplit_core.solver.pyomo_model import load_pyomo

    load_pyomo()  # the plans of jobs are explained, by programs; first, for it is smaller before SciPy than after
    for name in (*PRELOADED, *(kind_of(job).target.partition(":")[0] for job in JOBS)):
        importlib.import_module(name)
    # What the children share stays shared: whoever looks for garbage in it writes to it.
    gc.collect()
    gc.freeze()
    # The children are no concern of this process: the kernel forgets them when they end.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        request = _serve(connection)
    if request is not None:
        _run_command(*request)


def _serve(connection: socket.socket) -> tuple[Mapping[str, Any], int, int] | None:
    """Fork a child for every question. Returns in each what it was asked, its input and its log, and None in the
    process that forks when the server has ended."""
    with contextlib.suppress(ConnectionError):
        connection.send(b"loaded")
        while True:
            message, descriptors, _, _ = socket.recv_fds(connection, MAX_MESSAGE_BYTES, 2)
            if not message:
                break
            try:
                child = os.fork()
            except OSError:
                child = FORK_FAILED
            if child == 0:
                return json.loads(message), *descriptors
            for number in descriptors:
                os.close(number)
            connection.send(str(child).encode())
    return None


def _run_command(request: Mapping[str, Any], stdin: int, log: int) -> NoReturn:
    """Be what was asked for, as if Python had been started for it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    for number, target in ((stdin, 0), (log, 1), (log, 2)):
        os.dup2(number, target)
    for number in (stdin, log):
        os.close(number)
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None  # what was loaded may have asked for it
    module, *arguments = request["command"]
    sys.argv[:] = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.exit()
