"""A model that doubles, what it does to who serves it, and requests to it."""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MODELS = '''
import os, time, torch
from pathlib import Path
from torch import nn

class Model(nn.Module):
    """Doubles; what it does beside that depends on the first number of a row."""
    def forward(self, x):
        first = float(x[:, 0].max())
        if first == 100:
            raise IndexError("a token out of range")
        if first == 200:
            os._exit(9)
        while first == 300 and not Path(__file__).with_name("gate").exists():
            time.sleep(0.01)
        if first == 400:
            time.sleep(0.005)
        return 2 * x

class Client:
    batch_sizes = (1, 2)
    def get_model(self):
        return Model()
    def get_example_inputs(self, batch_size):
        return (torch.ones(batch_size, 2),)

class Broken(Client):
    def get_model(self):
        raise ValueError("no weights here")

class Dies(Client):
    def get_model(self):
        os._exit(7)

class Chatty(Client):
    """Prints two megabytes with every batch, and dies on 200."""
    def get_model(self):
        model = Model()
        def forward(x):
            print("x" * 2**21 + "\\nat the end", flush=True)
            return Model.forward(model, x)
        model.forward = forward
        return model

class Flat(Client):
    """Gives no batch back."""
    def get_model(self):
        model = nn.Linear(2, 2)
        model.forward = lambda x: x.sum()
        return model
'''


PATIENCE_S = 120.0


def until(condition: Callable[[], bool]) -> None:
    """Wait until it holds: seconds where the machine is busy with other things."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def x(*rows: float) -> list[dict[str, Any]]:
    data = [[row, 1.0] for row in rows]
    return [{"name": "x", "datatype": "FP32", "shape": [len(rows), 2], "data": data}]


def doubled(answer: tuple[int, Any]) -> list[float]:
    status, told = answer
    assert status == 200, told
    return list(told["outputs"][0]["data"][::2])


def children_of(pid: int) -> list[int]:
    """All processes below one, from /proc."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_bytes().rpartition(b")")[2].split()[1])
            except (OSError, IndexError):
                continue
    found, left = [], [pid]
    while left:
        parent = left.pop()
        below = [one for one, above in parents.items() if above == parent]
        found += below
        left += below
    return found


def kill_below(pid: int) -> None:
    """End all processes below one, or itself if there are none. Some end with another of them."""
    for below in children_of(pid) or [pid]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(below, signal.SIGKILL)
