"""The arguments of a torch.export program's nodes, in the form of the graph contract.

Names come from the operator's schema; without one (higher-order operators, Python functions) arguments are numbered.
Omitted arguments stay out: torch's dispatcher drops defaults before the export, and `torch.export.save` writes only
given arguments, so a .pt2, which is read without a schema, has the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch.fx import GraphModule, Node

from torchsplit_core.graph.arguments import (
    encode_list,
    encode_mapping,
    encode_number,
    encode_text,
    limit_depth,
)
from torchsplit_core.tracing.naming import operation_target

WriteSize = Callable[[str], int | str]
"""A size from its sympy.srepr form, as `Symbols.write`."""


class CallArguments:
    """The arguments of a node, and the names of the values they read, in order and with repetitions."""

    def __init__(self, node: Node, write: WriteSize) -> None:
        self.reads: list[str] = []
        self._write = write
        self.arguments: dict[str, Any]
        if node.op == "output":
            self.arguments = self._encode_results(node.args[0])
        else:
            self.arguments = {
                name: limit_depth(self._encode(value)) for name, value in _named_arguments(node)
            }

    def _encode_results(self, results: Any) -> dict[str, Any]:
        """A graph's outputs, if they say more than its reads: if one of them is no value of the graph."""
        values = [self._encode(value) for value in (results if _is_list(results) else [results])]
        return {} if all(map(is_graph_value, values)) else {"0": limit_depth(encode_list(values))}

    def _encode(self, value: Any) -> Any:
        if isinstance(value, Node):
            return self._encode_read(value)
        if value is None or isinstance(value, (bool, int)):
            return value
        if isinstance(value, float):
            return encode_number(value)
        if isinstance(value, str):
            return encode_text(value)
        if isinstance(value, complex):
            return {"complex": [encode_number(value.real), encode_number(value.imag)]}
        if _is_list(value):
            return encode_list(map(self._encode, value))
        if isinstance(value, Mapping):
            return encode_mapping({str(key): self._encode(value[key]) for key in sorted(value)})
        if isinstance(value, slice):
            return {"slice": [self._encode(bound) for bound in (value.start, value.stop, value.step)]}
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self._write(sympy.srepr(value.node.expr))
        return _encode_constant(value)

    def _encode_read(self, node: Node) -> dict[str, Any]:
        """A value of the graph, or the content of a module's attribute."""
        if node.op != "get_attr":
            self.reads.append(node.name)
            return {"input": len(self.reads) - 1}
        attribute: Any = getattr(node.graph.owning_module, str(node.target), None)
        if isinstance(attribute, GraphModule):
            return {"body": str(node.target)}
        if isinstance(attribute, torch.Tensor):
            return {"constant": [_plain(attribute.dtype), encode_list(attribute.shape)]}
        return {"object": _class(attribute)}


def is_graph_value(value: Any) -> bool:
    """Whether an encoded argument is a value of the graph."""
    return isinstance(value, dict) and value.keys() == {"input"}


def _named_arguments(node: Node) -> Iterator[tuple[str, Any]]:
    """Name and value of each given argument, in the schema's order if there is one."""
    if isinstance(node.target, torch._ops.OpOverload):
        for index, argument in enumerate(node.target._schema.arguments):
            if argument.name in node.kwargs:
                yield argument.name, node.kwargs[argument.name]
            elif not argument.kwarg_only and index < len(node.args):
                yield argument.name, node.args[index]
    else:
        yield from ((str(index), value) for index, value in enumerate(node.args))
        yield from node.kwargs.items()


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _plain(value: object) -> str:
    return str(value).removeprefix("torch.")


def _encode_constant(value: Any) -> str | dict[str, Any]:
    """The name of an enum, a device or an operator; for anything else its class."""
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format, torch.device)):
        return _plain(value)
    if isinstance(value, (torch._ops.OpOverload, torch._ops.HigherOrderOperator)):
        return function_target(value)
    return {"object": _class(value)}


def _class(value: Any) -> str:
    if isinstance(value, torch.ScriptObject):
        return str(value._type().qualified_name())
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def function_target(target: Any) -> str:
    """The name of a node's target."""
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher_order.{target.name()}"
    return operation_target(f"{target.__module__}.{target.__name__}")
