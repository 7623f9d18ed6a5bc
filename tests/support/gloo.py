"""Files for torchrun, each run on so many gloo processes that are forked from this one, which has torch loaded.

`python -m tests.support.gloo STEPS N FILE [N FILE …]` prints a line of JSON a run: its exit codes and what it wrote.
"""

import json
import os
import runpy
import socket
import sys
import tempfile
import traceback


def run(file: str, processes: int, steps: str) -> tuple[list[int], str]:
    """Exit codes and output of all processes together."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryFile("w+") as output:
        children = []
        for rank in range(processes):
            child = os.fork()
            if child == 0:
                _become(file, steps, rank, processes, port, output.fileno())
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        output.seek(0)
        return codes, output.read()


def _become(file: str, steps: str, rank: int, processes: int, port: int, output: int) -> None:
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(processes), LOCAL_WORLD_SIZE=str(processes),
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
    )  # fmt: skip
    os.dup2(output, 1)
    os.dup2(output, 2)
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
    import torch
    import torch.distributed.fsdp
    import torch.distributed.pipelining
    import torch.distributed.tensor.parallel

    torch.set_num_threads(1)
    steps, *asked = sys.argv[1:]
    for count, name in zip(asked[::2], asked[1::2], strict=True):
        print(json.dumps(run(name, int(count), steps)), flush=True)
