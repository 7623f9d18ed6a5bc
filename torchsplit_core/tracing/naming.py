"""Names, shapes and sizes in a TorchGraph, written the same from an export and from a .pt2."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from math import prod

from torchsplit_core.model_source import is_user_file

# Called for every frame of every node, with few different files.
_is_user_file = lru_cache(maxsize=4096)(is_user_file)

# Bytes of one element, by torch's name of the dtype.
DTYPE_BYTES = {
    "uint8": 1, "int8": 1, "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1, "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2,
    "int32": 4, "uint32": 4, "float32": 4, "complex32": 4, "int64": 8, "uint64": 8, "float64": 8,
    "complex64": 8, "complex128": 16,
}  # fmt: skip
LONGEST_EXPRESSION = 4000
NO_MODULE = "_empty_nn_module_stack_from_metadata_hook"

LONGEST_CODE = 200
BATCH_NOTE = "The graph holds for batches of at most {}: parts of the model refuse larger ones."

_FRAME = re.compile(r'File "([^"]+)", line (\d+)[^\n]*(?:\n(?![ \t]*File ")([^\n]*))?')
_OPERATION = re.compile(r"^(?:torch\.ops\.)?([\w.]+)$")


class SymbolNames:
    """Writes sizes with torch's symbols renamed to s0, s1, … (data-dependent ones to u0, …) in order of appearance.

    torch derives its own names from the inputs' names, so they differ between equal models.
    """

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._written: dict[str, int | str] = {}

    def write(self, expression: str) -> int | str:
        """A size as a number or infix text, from its sympy.srepr form; other forms stay as they are.

        The expression is parsed, never evaluated. Raises ValueError if it is too long or too deeply nested.
        """
        if expression not in self._written:
            self._written[expression] = self._write(expression)
        return self._written[expression]

    def _write(self, expression: str) -> int | str:
        if len(expression) > LONGEST_EXPRESSION:
            raise ValueError("a size is written in too many characters")
        try:
            text = self._infix(ast.parse(expression, mode="eval").body)
        except (SyntaxError, RecursionError, MemoryError) as error:
            raise ValueError(f"a size cannot be read: {expression[:60]}") from error
        return int(text) if text.isdecimal() else text

    def _name(self, symbol: str) -> str:
        if symbol not in self._names:
            letter = "u" if symbol.startswith(("u", "zu")) else "s"
            count = sum(name.startswith(letter) for name in self._names.values())
            self._names[symbol] = f"{letter}{count}"
        return self._names[symbol]

    def _infix(self, node: ast.expr) -> str:
        if isinstance(node, ast.Name):
            return self._name(node.id)
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            return ast.unparse(node)
        kind = node.func.id
        if kind == "Symbol" and node.args and isinstance(node.args[0], ast.Constant):
            return self._name(str(node.args[0].value))
        # Sorted, because sympy orders operands by torch's names of the symbols.
        parts = [self._infix(part) for part in node.args]
        if kind == "Integer":
            return parts[0]
        if kind == "Add":
            return " + ".join(sorted(parts))
        if kind == "Mul":
            return "*".join(sorted(f"({part})" if " + " in part else part for part in parts))
        if kind == "Pow":
            return "**".join(f"({part})" for part in parts)
        return f"{kind}({', '.join(parts)})"


def tensor_bytes(dtype: str, sizes: tuple[int | None, ...]) -> int:
    """Bytes of a contiguous tensor; a data-dependent size (None) counts as 1."""
    return DTYPE_BYTES.get(dtype, 4) * prod(1 if size is None else size for size in sizes)


def short_name(target: str) -> str:
    """ "linear" of "aten.linear.default", "getitem" of "_operator.getitem"."""
    parts = target.split(".")
    return parts[1] if len(parts) > 2 else parts[-1]


def operation_target(target: str) -> str:
    """ "aten.linear.default" of "torch.ops.aten.linear.default"."""
    match = _OPERATION.match(target)
    return match.group(1) if match else target


@lru_cache(maxsize=4096)
def module_path(path: str) -> str:
    """ "encoder.layer.3" of the paths that torch records: also "L['self'].encoder.layer[3]" and "_modules" steps."""
    if path == NO_MODULE:
        return ""
    path = re.sub(r"^L\[['\"]self['\"]\]|^L__self__", "", path)
    path = re.sub(r"\._modules\[['\"]([^'\"]+)['\"]\]", r".\1", path)
    path = re.sub(r"\[['\"]?([^'\"\]]+)['\"]?\]", r".\1", path)
    # A second call of one module is recorded as "block@1".
    return re.sub(r"@\d+", "", path).strip(".")


def source_line(text: str) -> str:
    """ "file.py:118": the innermost frame of a stack trace outside torch; "" if there is none."""
    return source_and_code(text)[0]


@lru_cache(maxsize=4096)
def source_and_code(stack_trace: str) -> tuple[str, str]:
    """("file.py:118", its text) of the innermost frame outside torch; ("", "") if there is none.

    torch wrote the text into the trace; at most 200 characters of it. No file is opened.
    """
    for path, line, text in reversed(_FRAME.findall(stack_trace)):
        if _is_user_file(path):
            return f"{path.replace(chr(92), '/').rsplit('/', 1)[-1]}:{line}", text.strip()[:LONGEST_CODE]
    return "", ""
