"""Models for the tests of measuring, written to a file as a user would: each goes wrong in its own way."""

from pathlib import Path
from typing import Any

from tests.support.profiling.export import export, to_graph
from torchsplit_core.graph.torch_graph import TorchGraph

SOURCE = """
import os, time
import torch
from torch import nn

LEAKED = []

class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        if not torch.compiler.is_compiling():
            batch = x.shape[0]
            COUNT
            BODY
        return torch.relu(self.inner(x))

class Client:
    batch_sizes = (1, 2)
    def get_model(self):
        return Odd()
    def get_example_inputs(self, batch_size):
        return (torch.randn(batch_size, 4),)
"""

FAILS_AT_3 = 'if batch == 3: raise ValueError("three is too many")'
NO_MEMORY_AT_7 = 'if batch == 7: raise RuntimeError("DefaultCPUAllocator: can\'t allocate memory: 9 bytes")'
CRASHES_AT_4 = "if batch == 4: os.abort()"
ENDS_AT_3 = "if batch == 3: os._exit(0)"
HANGS_AT_5 = "if batch == 5: time.sleep(1000)"
PRINTS = 'print("x" * 100000)'
FORKS = "os.fork() == 0 and time.sleep(1000)"
LEAKS_AT_2 = "batch == 2 and LEAKED.append(torch.ones(16_000_000))"
LOST_AT_3 = 'if batch == 3: raise RuntimeError("CUDA error: unspecified launch failure")'


def written(folder: Path, body: str, name: str = "odd") -> tuple[str, TorchGraph]:
    """A trusted Python file with those lines in its forward, and its graph. Every run adds a line to `runs.txt`."""
    file = folder / f"{name}.py"
    count = f'open({str(folder / "runs.txt")!r}, "a").write(f"{{batch}}\\\\n")'.replace("\\\\", "\\")
    file.write_text(
        SOURCE.replace("COUNT", count).replace("BODY", (body or "pass").replace("\n", "\n" + " " * 12))
    )
    space: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), space)
    client = space["Client"]()
    return f"{file}:Client", to_graph(export(client.get_model(), client.get_example_inputs(2)))


def runs_of(folder: Path) -> dict[int, int]:
    """How often each batch size ran."""
    file = folder / "runs.txt"
    lines = file.read_text().split() if file.exists() else []
    return {int(batch): lines.count(batch) for batch in set(lines)}
