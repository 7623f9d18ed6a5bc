"""Forks job processes from one that has preloaded their modules: importing these takes longer than most plans.

Each server starts one such process ahead of time. It runs no job itself; for every request it forks a child, which
then behaves as if started by `python -m`: same arguments, environment, standard input and log, in its own session.
The fork server ends with its server; the jobs continue. If it is not ready, or the system is not Linux, jobs start a
new Python.
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
"""Modules that jobs import while they run, besides those of their kinds; none of them imports torch."""
MAX_MESSAGE_BYTES = 2**17
"""Limit of a request, most of which is the environment. A job with a longer one starts a new Python."""
FORK_FAILED = -1
"""The process id that reports a failed fork."""


class ForkServer:
    """The server's handle of the forking process."""

    def __init__(self) -> None:
        self._socket, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        with server_end:
            self.process = subprocess.Popen(
                [sys.executable, "-c", f"from {__name__} import main; main()", str(server_end.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(server_end.fileno(),),
                # Ctrl-C is for the server; this process ends after the server.
                start_new_session=True,
                # fork() copies no other thread: a child that waits for an OpenBLAS thread would hang.
                env=os.environ | {"PYTHONPATH": python_path(), "OPENBLAS_NUM_THREADS": "1"},
            )
        self._loaded = False

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], stdin: int, log: int
    ) -> int | None:
        """Fork `python -m command`, which reads `stdin` and prints into `log`. Returns its process id, None if this
        is not ready or has ended."""
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
        """Block until the process is ready or has ended."""
        with self._lock, contextlib.suppress(OSError):
            self._loaded = self._loaded or bool(self._socket.recv(MAX_MESSAGE_BYTES))

    def end(self) -> None:
        """End the process; the jobs continue."""
        self._socket.close()
        self.process.wait()

    def _is_loaded(self) -> bool:
        with contextlib.suppress(OSError):
            self._loaded = self._loaded or bool(self._socket.recv(MAX_MESSAGE_BYTES, socket.MSG_DONTWAIT))
        return self._loaded


_servers: list[ForkServer] = []
"""The fork server of this process: none or one."""


def prepare() -> None:
    """Start the fork server; jobs of this process are forked once it has loaded their modules."""
    if not _servers and sys.platform == "linux":
        _servers.append(ForkServer())


def fork_process(command: Sequence[str], environment: Mapping[str, str], stdin: int, log: int) -> int | None:
    """Fork `python -m command` and return its process id; None without a fork server that is ready."""
    return _servers[0].start(command, environment, stdin, log) if _servers else None


def main() -> None:
    """Preload, then fork a child for every request until the server ends."""
    from torchsplit_core.solver.pyomo_model import load_pyomo

    load_pyomo()  # the plans of jobs are explained, by programs; first, for it is smaller before SciPy than after
    for name in (*PRELOADED, *(kind_of(job).target.partition(":")[0] for job in JOBS)):
        importlib.import_module(name)
    # Garbage collection writes to the objects that it examines and would copy pages shared with the children.
    gc.collect()
    gc.freeze()
    # This process does not wait for its children: the kernel reaps them.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        request = _serve(connection)
    if request is not None:
        _run_command(*request)


def _serve(connection: socket.socket) -> tuple[Mapping[str, Any], int, int] | None:
    """Fork a child for every request. Returns in each child its request, standard input and log; returns None in
    the forking process when the server has ended."""
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
    """Run the requested module as if Python had been started for it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    for number, target in ((stdin, 0), (log, 1), (log, 2)):
        os.dup2(number, target)
    for number in (stdin, log):
        os.close(number)
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None  # a preloaded module may have set it
    module, *arguments = request["command"]
    sys.argv[:] = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.exit()
