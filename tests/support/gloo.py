"""Files for torchrun, each run on so many gloo processes that are forked from one, which has torch loaded.

One such process a test worker: loading torch, and what it loads when it compiles or exports, takes seconds.
"""

import atexit
import faulthandler
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support.paths import ROOT
from tests.support.ports import free_port

LOADED = (
    "torch", "torch.distributed.fsdp", "torch.distributed.pipelining", "torch.distributed.tensor.parallel",
    "torch.distributed.tensor.experimental._attention", "torch.export._trace", "torch._dynamo.repro.after_dynamo",
    "torch._export.passes.collect_tracepoints_pass", "torch._inductor.compile_fx",
)  # fmt: skip
AFTER_ANOTHER_S, STUCK_S = 30.0, 120.0
"""Processes that wait for one that has failed, or for each other, are ended after so long: gloo waits half an hour."""


class Ended(NamedTuple):
    """Exit codes of the processes of a file, and what they wrote together."""

    codes: list[int]
    text: str


def run_files(files: Sequence[tuple[int, Path]], *, steps: int) -> list[Ended]:
    """Run each file on so many processes, with `--steps`."""
    server = _server()
    assert server.stdin and server.stdout
    ended = []
    for processes, file in files:
        server.stdin.write(json.dumps([str(file), processes, str(steps)]) + "\n")
        server.stdin.flush()
        ended.append(Ended(*json.loads(server.stdout.readline())))
    return ended


@functools.cache
def _server() -> subprocess.Popen[str]:
    """It ends with this process, by the end of what it reads."""
    command = [sys.executable, "-m", __name__]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    atexit.register(server.communicate)
    return server


def _run(file: str, processes: int, steps: str) -> tuple[list[int], str]:
    """Exit codes and output of all processes together."""
    port = free_port()
    with tempfile.TemporaryFile("w+") as output:
        children = []
        for rank in range(processes):
            child = os.fork()
            if child == 0:
                _become(file, steps, rank, processes, port, output.fileno())
            children.append(child)
        codes = _codes(children)
        output.seek(0)
        return codes, output.read()


def _codes(children: Sequence[int]) -> list[int]:
    """Exit codes, in order; those that never end are ended, after they wrote where they were (see `_become`)."""
    codes: dict[int, int] = {}
    end = time.monotonic() + STUCK_S + AFTER_ANOTHER_S
    while len(codes) < len(children):
        for child in children:
            if child not in codes:
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended:
                    codes[child] = os.waitstatus_to_exitcode(status)
        if any(codes.values()):
            end = min(end, time.monotonic() + AFTER_ANOTHER_S)
        if time.monotonic() > end:
            for child in children:
                if child not in codes:
                    os.kill(child, signal.SIGKILL)
        time.sleep(0.005)
    return [codes[child] for child in children]


def _become(file: str, steps: str, rank: int, processes: int, port: int, output: int) -> None:
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(processes), LOCAL_WORLD_SIZE=str(processes),
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
    )  # fmt: skip
    os.dup2(output, 1)
    os.dup2(output, 2)
    faulthandler.dump_traceback_later(STUCK_S)
    sys.argv = [file, "--steps", steps]
    code = 1
    try:
        runpy.run_path(file, run_name="__main__")
        code = 0
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    for name in LOADED:
        importlib.import_module(name)
    importlib.import_module("torch").set_num_threads(1)
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        print(json.dumps(_run(*json.loads(line))), flush=True)
