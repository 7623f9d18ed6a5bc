"""Confined children that begin with torch loaded: loading it takes seconds, and most tests are of what comes after.

One process a test worker loads what children load and forks one whenever the product would start one. The child is
handed over to the caller, as if that had started it: it sets its isolation up, ends with its caller and is waited
for in the same ways. Only the start of Python and the imports are shared, so what is about them is tested without.
"""

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any, NoReturn

from tests.support.paths import ROOT

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
CHILD = "torchsplit_core.isolation.child"
LOADED = (
    "torch", "torch.export", "torch._dynamo", "torch._inductor", "torch._subclasses.fake_tensor",
    "torch.fx.experimental.symbolic_shapes", "torch.utils.flop_counter", "torch.profiler",
    CHILD, "torchsplit_core.isolation.sandbox.supervisor",
    "torchsplit_core.tracing.export",
)  # fmt: skip
MOST_BYTES = 2**20
FREE_FROM = 500
"""Descriptors from here on are in nobody's way while they are put where the child expects them."""


class Starter:
    """The process that forks children; it ends with its caller."""

    def __init__(self) -> None:
        self.ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            env=environment,
        )
        theirs.close()
        atexit.register(self.close)

    def start(self, asked: dict[str, Any], descriptors: list[int]) -> int:
        """Fork a child that is ours; its process id."""
        _adopt_orphans(True)
        try:
            socket.send_fds(self.ours, [json.dumps(asked).encode()], descriptors)
            answer = json.loads(self.ours.recv(MOST_BYTES))
        finally:
            _adopt_orphans(False)
        return int(answer)

    def close(self) -> None:
        """End it."""
        self.ours.close()
        self.process.wait()


class WarmPopen(subprocess.Popen[bytes]):
    """A child like the one that `Popen` starts for these arguments: `python -P -m torchsplit_core.isolation.child`."""

    starter: Starter | None = None

    def _execute_child(self, args: Any, *given: Any) -> None:
        _, _, _, pass_fds, cwd, env = given[:6]
        pipes = reading, p2cwrite, _, writing, errread, errwrite = given[9:15]
        assert (p2cwrite, errread) == (-1, -1) and args[1:4] == ["-P", "-m", CHILD]
        if WarmPopen.starter is None:
            WarmPopen.starter = Starter()
        numbers = [0, 1, 2, *sorted(pass_fds)]
        asked = {
            "numbers": numbers, "arguments": args[4:], "folder": str(cwd), "environment": dict(env),
            "caller": os.getpid(),
        }  # fmt: skip
        self.pid = WarmPopen.starter.start(asked, [reading, writing, errwrite, *sorted(pass_fds)])
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


class WarmSubprocess:
    """What the launch of a child uses of `subprocess`."""

    Popen, PIPE, STDOUT = WarmPopen, subprocess.PIPE, subprocess.STDOUT
    TimeoutExpired = subprocess.TimeoutExpired


def _adopt_orphans(whether: bool) -> None:
    """Whether a process whose parent ends becomes ours."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, int(whether), 0, 0, 0) == -1:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def serve(descriptor: int) -> None:
    """Load what children load, then fork one for every question until the caller ends."""
    before = set(os.environ.get("PYTHONPATH", "").split(os.pathsep))
    plain = [entry for entry in sys.path if entry not in before]
    for name in LOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=descriptor) as asking:
        while True:
            told, handed, _, _ = socket.recv_fds(asking, MOST_BYTES, 16)
            if not told:
                return
            between = os.fork()
            if not between:
                if not os.fork():
                    _become(json.loads(told), handed, asking, plain)
                os._exit(0)
            os.waitpid(between, 0)
            for number in handed:
                os.close(number)


def _become(asked: dict[str, Any], handed: list[int], asking: socket.socket, plain: list[str]) -> NoReturn:
    """Be the child that was asked for."""
    while os.getppid() != asked["caller"]:
        time.sleep(0.0005)
    asking.send(json.dumps(os.getpid()).encode())
    asking.close()
    free = [fcntl.fcntl(number, fcntl.F_DUPFD, FREE_FROM) for number in handed]
    for number in handed:
        os.close(number)
    for number, target in zip(free, asked["numbers"], strict=True):
        os.dup2(number, target)
        os.close(number)
    os.setsid()
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    tempfile.tempdir = None  # what was loaded has asked for it
    sys.path[:] = [*asked["environment"]["PYTHONPATH"].split(os.pathsep), *plain]
    child = importlib.import_module(CHILD)
    sys.argv[:] = [str(child.__file__), *asked["arguments"]]
    try:
        child.main()
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
            os._exit(1)
        os._exit(end.code or 0)
    except BaseException:  # noqa: BLE001 - as the interpreter would
        with contextlib.suppress(BaseException):
            sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
