"""Sizes of a graph's values at any batch size, without torch.

Shapes of a traced graph have integers and symbol expressions ("s77", "4*s77", "(s0 + 1)//2"). A small arithmetic
evaluator reads them; nothing is ever passed to `eval`.

Values of the symbols:
- a symbol alone in dimension 0 of an input follows the batch: its value is that of the trace (the traced batch, if
  its shape does not determine it) times batch / traced_batch; in a graph exported by this program so does one alone in
  any dimension of an input, because only sizes that follow the batch are left free there;
- any other symbol (a free sequence length, say) has its traced value, found from the bytes of a value whose shape has
  no other unknown; if it cannot be found, and for data-dependent sizes (u0, u1, …), it follows the batch.
A graph without symbols was specialised to its traced batch: values that depend on an input are scaled by batch /
traced_batch, weights are not.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from math import prod

from torchsplit_core.graph.torch_graph import TorchGraph
from torchsplit_core.values import GraphNode, InputFault, quoted

DTYPE_BYTES: Mapping[str, float] = {
    "float64": 8, "double": 8, "float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "int64": 8, "long": 8, "int32": 4, "int": 4, "int16": 2,
    "int8": 1, "uint8": 1, "bool": 1, "complex64": 8, "complex128": 16,
}  # fmt: skip
"""Bytes of an element, by the dtype's name without "torch."."""

_BINARY: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: Mapping[str, Callable[..., float]] = {
    "Max": max,
    "Min": min,
    "max": max,
    "min": min,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "CeilDiv": lambda a, b: -(-a // b),
    "CeilToInt": lambda a: -(-a // 1),
    "FloorToInt": lambda a: a // 1,
    "TruncToInt": lambda a: int(a),
    "ceiling": lambda a: -(-a // 1),
    "floor": lambda a: a // 1,
    "ToFloat": float,
    "IntTrueDiv": operator.truediv,
    "FloatTrueDiv": operator.truediv,
    "Rational": operator.truediv,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "Abs": abs,
}
_LARGEST_EXPONENT = 8
_LONGEST_EXPRESSION = 2000


def dtype_name(dtype: str | None) -> str:
    """ "torch.float32" and "float32" become the same; None becomes the empty string."""
    return (dtype or "").removeprefix("torch.")


def element_bytes(dtype: str | None) -> float:
    """Bytes of one element; a dtype not in the table counts as 4."""
    return DTYPE_BYTES.get(dtype_name(dtype), 4)


@lru_cache(maxsize=4096)
def _parse_expression(expression: str) -> ast.expr:
    if len(expression) > _LONGEST_EXPRESSION:
        raise InputFault(
            "shape",
            f"has a size of {len(expression)} characters, more than {_LONGEST_EXPRESSION}",
            "Trace the model again.",
        )
    try:
        return ast.parse(expression, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as fault:
        raise InputFault(
            "shape",
            f"has the size {quoted(expression)}, neither a number nor an arithmetic expression",
            "Trace the model again.",
        ) from fault


@lru_cache(maxsize=4096)
def symbols_of(size: int | str) -> frozenset[str]:
    """The symbol names in a size."""
    if isinstance(size, int):
        return frozenset()
    calls = {node.func for node in ast.walk(_parse_expression(size)) if isinstance(node, ast.Call)}
    names = (
        node for node in ast.walk(_parse_expression(size)) if isinstance(node, ast.Name) and node not in calls
    )
    return frozenset(node.id for node in names)


def evaluate_size(size: int | str, symbols: Mapping[str, int]) -> int:
    """The value of a size. Raises InputFault for a symbol without a value or anything but arithmetic."""
    if isinstance(size, int):
        return size
    try:
        return int(_evaluate(_parse_expression(size), symbols, size))
    except (ZeroDivisionError, OverflowError, TypeError) as fault:
        raise InputFault(
            "shape",
            f"has the size {quoted(size)}, which cannot be computed: {fault}",
            "Trace the model again.",
        ) from fault


def _evaluate(node: ast.expr, symbols: Mapping[str, int], whole: str) -> float:
    match node:
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.Name(id=name) if name in symbols:
            return symbols[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate(operand, symbols, whole)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            exponent = _evaluate(right, symbols, whole)
            if abs(exponent) <= _LARGEST_EXPONENT:
                return float(_evaluate(left, symbols, whole) ** exponent)
        case ast.BinOp(left=left, op=action, right=right) if type(action) in _BINARY:
            return _BINARY[type(action)](_evaluate(left, symbols, whole), _evaluate(right, symbols, whole))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*(_evaluate(item, symbols, whole) for item in args))
    raise InputFault(
        "shape",
        f"has the size {quoted(whole)}, with an unknown symbol or operation",
        "Give every symbol its value, or trace the model again.",
    )


def bind_symbols(graph: TorchGraph, batch_size: int) -> dict[str, int]:
    """A value for every symbol of the graph, by the rules at the top of this module."""
    exported_here = graph.route not in ("", "read")
    traced: dict[str, int] = {}
    for node in graph.input_nodes:
        lone_symbols = [size for size in node.shape or () if isinstance(size, str) and size.isidentifier()]
        first = lone_symbols[:1] if node.shape and node.shape[0] in lone_symbols else []
        for name in lone_symbols if exported_here else first:
            if name not in traced:
                unknown = {other for size in node.shape or () for other in symbols_of(size)} - traced.keys()
                is_determined = unknown == {name} and node.output_bytes
                traced[name] = (
                    _solve_symbol(node, name, traced) if is_determined else None
                ) or graph.traced_batch
    symbols = {name: max(1, value * batch_size // graph.traced_batch) for name, value in traced.items()}
    for node in graph.nodes:
        unknown = {name for size in node.shape or () for name in symbols_of(size)} - traced.keys()
        name = unknown.pop() if len(unknown) == 1 else ""
        if name and not name.startswith("u") and node.output_bytes:
            traced[name] = symbols[name] = _solve_symbol(node, name, traced) or batch_size
    for node in graph.nodes:
        for size in node.shape or ():
            for name in symbols_of(size):
                symbols.setdefault(name, batch_size)
    return symbols


def _solve_symbol(node: GraphNode, name: str, traced: Mapping[str, int]) -> int | None:
    """The value of the only unknown symbol with which the shape has the node's bytes, by bisection."""
    wanted = node.output_bytes / element_bytes(node.dtype)

    def elements(value: int) -> int:
        return prod(evaluate_size(size, {**traced, name: value}) for size in node.shape or ())

    low, high = 1, max(int(wanted), 1)
    while low < high:  # sizes grow with their symbols, and so does the number of elements
        middle = (low + high) // 2
        low, high = (middle + 1, high) if elements(middle) < wanted else (low, middle)
    return low if elements(low) == wanted else None


class Sizes:
    """Elements and bytes of every value of a graph at a batch size."""

    def __init__(self, graph: TorchGraph, batch_size: int, symbols: Mapping[str, int] | None = None) -> None:
        self.graph = graph
        self.batch_size = batch_size
        self.symbols = dict(bind_symbols(graph, batch_size) if symbols is None else symbols)
        for name, value in bind_symbols(graph, batch_size).items():
            self.symbols.setdefault(name, value)
        self._scale = 1.0 if self.symbols else batch_size / graph.traced_batch
        self._from_input: set[str] = set()
        for node in graph.nodes:
            if node.kind == "input" or any(name in self._from_input for name in node.inputs):
                self._from_input.add(node.id)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape with its symbols evaluated (unscaled if the graph has none); None for no tensor."""
        shape = self.graph.by_id[name].shape
        return None if shape is None else tuple(evaluate_size(size, self.symbols) for size in shape)

    def elements(self, name: str) -> float:
        """Number of elements; 0 for a value that is no tensor."""
        shape = self.shape(name)
        return 0.0 if shape is None else prod(shape) * self.factor(name)

    def bytes(self, name: str) -> float:
        """Bytes of the value; the sum for a tuple of tensors."""
        node = self.graph.by_id[name]
        if node.shape is not None:
            return self.elements(name) * element_bytes(node.dtype)
        if node.output_bytes:
            ratio = self.batch_size / self.graph.traced_batch if name in self._from_input else 1.0
            return node.output_bytes * ratio
        return sum(
            self.bytes(user)
            for user in self.graph.users[name]
            if self.graph.by_id[user].target.endswith("getitem") and self.graph.by_id[user].shape is not None
        )

    def factor(self, name: str) -> float:
        """The factor of the batch on a value of a graph without symbols; 1 if there are symbols."""
        return self._scale if name in self._from_input else 1.0


def bytes_per_request(graph: TorchGraph) -> float:
    """Bytes of a request's inputs and outputs, at a batch of one."""
    sizes = Sizes(graph, 1)
    given = (node.id for node in graph.nodes if node.kind == "input")
    answered = {name for node in graph.nodes if node.kind == "output" for name in node.inputs}
    return sum(map(sizes.bytes, (*given, *answered)))
