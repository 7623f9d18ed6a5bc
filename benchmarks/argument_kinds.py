"""Which kinds of arguments the exports of the Hugging Face architectures yield, each with an example.

The table of pairs in `tests.support.tracing.argument_pairs` covers every kind that this lists.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from math import isfinite, isnan
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from benchmarks.huggingface_models import ARCHITECTURES
from torchsplit_core.tracing.export import export_program
from torchsplit_core.tracing.export_inputs import OTHER_BATCH, TRACED_BATCH
from torchsplit_core.values import InputFault

PLAIN = {
    bool: "bool",
    int: "int",
    str: "text",
    complex: "complex",
    type(None): "none",
    torch.dtype: "dtype",
    torch.device: "device",
    torch.layout: "layout",
    torch.memory_format: "memory format",
}
TRACED = {torch.SymInt: "symbolic int", torch.SymBool: "symbolic bool", torch.SymFloat: "symbolic float"}


def kinds(program: ExportedProgram) -> Iterator[tuple[str, str]]:
    """(kind, where) of every argument of a program, including the bodies of control flow."""
    for module in program.graph_module.modules():
        if not isinstance(module, GraphModule):
            continue
        for node in module.graph.nodes:
            if node.op == "call_function":
                yield from _of_node(node)


def _of_node(node: Node) -> Iterator[tuple[str, str]]:
    what = "function"
    if isinstance(node.target, torch._ops.OpOverload):
        what = "operator"
    elif isinstance(node.target, torch._ops.HigherOrderOperator):
        what = "higher-order operator"
    for place, value in enumerate(node.args):
        yield f"{what}: {kind_of(value)}", f"{node.target} argument {place}"
    for name, value in node.kwargs.items():
        yield f"{what} keyword: {kind_of(value)}", f"{node.target} {name}"


def kind_of(value: Any) -> str:
    """The kind of an argument in a word or two; for a list with its elements' kinds."""
    if isinstance(value, Node):
        if value.op == "get_attr":
            return "body"
        held = value.meta.get("val")
        return TRACED.get(type(held), "several" if isinstance(held, (list, tuple)) else "tensor")
    if isinstance(value, (list, tuple)):
        return f"list of {' and '.join(sorted({kind_of(item) for item in value})) or 'nothing'}"
    if isinstance(value, float):
        return "NaN" if isnan(value) else "float" if isfinite(value) else "infinity"
    return PLAIN.get(type(value), type(value).__name__)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these architectures alone")
    options = parser.parse_args()
    found: dict[str, tuple[str, str]] = {}
    for architecture in ARCHITECTURES:
        if options.only and architecture.name not in options.only:
            continue
        other = ((), architecture.inputs(OTHER_BATCH))
        try:
            program = export_program(architecture.build(), (), architecture.inputs(TRACED_BATCH), other)
        except InputFault as fault:
            print(f"{architecture.name} is refused: {fault.where}", file=sys.stderr)
            continue
        for kind, where in kinds(program):
            found.setdefault(kind, (architecture.name, where))
    print("| kind | first in | where |")
    print("|---" * 3 + "|")
    for kind, (name, where) in sorted(found.items()):
        print(f"| {kind} | {name} | {where} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
