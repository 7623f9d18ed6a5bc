"""What a very large .pt2 costs to open: a chain of blocks in torch's own export schema, a million nodes of it.

The file is written to a temporary folder, traced through the product's path (a limited child process reads it,
this process keeps the graph), stored in a workspace, read back, prepared for cutting and divided into regions.
Peaks are of resident memory since the start, of this process and of the reading child.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from torchsplit_core.graph import prepare, region_tree
from torchsplit_core.tracing import trace
from torchsplit_core.workspace.store import Store

LIMIT_GB = 4.0
WIDTH = 512
TRACE = (
    'File "/home/user/models/chain.py", line 61, in forward\n    x = self.blocks[{block}](x)\n'
    '  File "/home/user/models/chain.py", line 40, in forward\n    {code}\n'
    '  File "/opt/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 134, in forward\n'
    "    return F.linear(input, self.weight, self.bias)"
)


def tensor(name: str) -> dict[str, Any]:
    """A tensor argument."""
    return {"as_tensor": {"name": name}}


def value(sizes: tuple[int, ...], batch: bool = True) -> dict[str, Any]:
    """torch's entry for a tensor of these sizes, after a free batch."""
    free = {"as_expr": {"expr_str": "Symbol('s77', positive=True, integer=True)", "hint": {"as_int": 2}}}
    return {
        "dtype": 7,
        "sizes": [*([free] if batch else []), *({"as_int": size} for size in sizes)],
        "requires_grad": False,
        "device": {"type": "cpu", "index": None},
        "strides": [{"as_int": WIDTH}, {"as_int": 1}],
        "storage_offset": {"as_int": 0},
        "layout": 7,
    }


def operation(name: str, target: str, reads: tuple[str, ...], block: int, code: str) -> dict[str, Any]:
    """A node as torch writes it, with a stack trace of three frames."""
    return {
        "target": f"torch.ops.aten.{target}",
        "inputs": [
            {"name": f"input_{place}", "arg": tensor(read), "kind": 1} for place, read in enumerate(reads)
        ],
        "outputs": [tensor(name)],
        "metadata": {
            "stack_trace": TRACE.format(block=block, code=code),
            "nn_module_stack": "L__self__,,chain.Chain;"
            f"L__self__blocks.{block},blocks.{block},chain.Block;"
            f"L__self__blocks.{block}.linear,blocks.{block}.linear,torch.nn.modules.linear.Linear",
            "torch_fn": f"{name};builtin_function_or_method.{target}",
        },
        "is_hop_single_tensor_return": None,
        "name": name,
    }


def block_nodes(blocks: int) -> Iterator[dict[str, Any]]:
    """Residual blocks: linear, relu, add. With its weight a block has four nodes."""
    before = "x"
    for block in range(blocks):
        linear, relu, add = f"linear_{block}", f"relu_{block}", f"add_{block}"
        yield operation(linear, "linear.default", (before, f"p_{block}"), block, "y = self.linear(x)")
        yield operation(relu, "relu.default", (linear,), block, "y = torch.relu(y)")
        yield operation(add, "add.Tensor", (relu, before), block, "return x + y")
        before = add


def write_pt2(path: Path, nodes: int) -> None:
    """Write a .pt2 of about `nodes` nodes, piece by piece."""
    blocks = nodes // 4

    def values() -> Iterator[str]:
        yield f'"x": {json.dumps(value((WIDTH,)))}'
        for block in range(blocks):
            yield f'"p_{block}": {json.dumps(value((WIDTH, WIDTH), batch=False))}'
            for name in ("linear", "relu", "add"):
                yield f'"{name}_{block}": {json.dumps(value((WIDTH,)))}'

    def specs() -> Iterator[str]:
        for block in range(blocks):
            weight = {"arg": {"name": f"p_{block}"}, "parameter_name": f"blocks.{block}.linear.weight"}
            yield json.dumps({"parameter": weight})
        yield json.dumps({"user_input": {"arg": tensor("x")}})

    last = json.dumps([tensor(f"add_{blocks - 1}")])
    with (
        zipfile.ZipFile(path, "w") as archive,
        archive.open("chain/models/model.json", "w", force_zip64=True) as out,
    ):

        def listed(head: str, parts: Iterator[str], tail: str) -> None:
            out.write(head.encode())
            for place, part in enumerate(parts):
                out.write(f"{', ' if place else ''}{part}".encode())
            out.write(tail.encode())

        listed(f'{{"graph_module": {{"graph": {{"inputs": [], "outputs": {last}, "nodes": [', iter(()), "")
        listed("", map(json.dumps, block_nodes(blocks)), '], "tensor_values": {')
        listed("", values(), '}}, "signature": {"input_specs": [')
        listed("", specs(), ']}}, "schema_version": {"major": 8, "minor": 0}}')


def peak_gb(whose: int) -> float:
    """Peak resident memory in GB (1e9 bytes) of this process or of the largest child that has ended."""
    return resource.getrusage(whose).ru_maxrss * 1024 / 1e9


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[100_000, 1_000_000])
    sizes = parser.parse_args().nodes
    print("| nodes | file GB | step | s | peak of this process GB | of the child GB |")
    print("|---:|---:|---|---:|---:|---:|")
    worst = 0.0
    for size in sorted(sizes):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "chain.pt2"
            write_pt2(path, size)
            file_gb = path.stat().st_size / 1e9
            workspace = Store(Path(folder) / "store").create("large")

            def step(name: str, work: Callable[[], Any], size: int = size, file_gb: float = file_gb) -> Any:
                start = time.perf_counter()
                found = work()
                seconds = time.perf_counter() - start
                own, child = peak_gb(resource.RUSAGE_SELF), peak_gb(resource.RUSAGE_CHILDREN)
                print(
                    f"| {size:,} | {file_gb:.2f} | {name} | {seconds:.1f} | {own:.2f} | {child:.2f} |",
                    flush=True,
                )
                return found

            graph = step("trace", partial(trace, str(path)))
            # Only until here do both processes hold memory; the later steps run in this process alone.
            worst = max(worst, peak_gb(resource.RUSAGE_SELF) + peak_gb(resource.RUSAGE_CHILDREN))
            step("store", partial(workspace.put, "graph", "large", graph))
            del graph
            graph = step("read back", partial(workspace.get, "graph", "large"))
            prepared = step("prepare", partial(prepare, graph))
            step("regions", partial(region_tree, prepared))
            del graph, prepared
            worst = max(worst, peak_gb(resource.RUSAGE_SELF))
    print(f"\nAt most {worst:.2f} GB at a time, of {LIMIT_GB:g} GB allowed.")
    return int(worst > LIMIT_GB)


if __name__ == "__main__":
    sys.exit(main())
