"""The arguments of a .pt2's nodes, from the JSON of torch's export schema to that of the graph contract.

Equal to `call_arguments` for the saved program. Raises ValueError, TypeError, KeyError or AttributeError for anything
that breaks the schema.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from torchsplit_core.graph.arguments import (
    LEAST_WHOLE,
    MOST_WHOLE,
    encode_list,
    encode_mapping,
    encode_number,
    encode_text,
    limit_depth,
)
from torchsplit_core.tracing.naming import operation_target

# torch._export.serde.schema.ScalarType
DTYPES = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32", 8: "float64",
    9: "complex32", 10: "complex64", 11: "complex128", 12: "bool", 13: "bfloat16", 28: "uint16",
    29: "float8_e4m3fn", 30: "float8_e5m2", 31: "float8_e4m3fnuz", 32: "float8_e5m2fnuz",
    33: "float8_e8m0fnu", 34: "uint32", 35: "uint64",
}  # fmt: skip
# torch._export.serde.schema.Layout
LAYOUTS = {
    1: "sparse_coo", 2: "sparse_csr", 3: "sparse_csc", 4: "sparse_bsr", 5: "sparse_bsc", 6: "_mkldnn", 7: "strided",
}  # fmt: skip
# torch._export.serde.schema.MemoryFormat
MEMORY_FORMATS = {
    1: "contiguous_format", 2: "channels_last", 3: "channels_last_3d", 4: "preserve_format",
}  # fmt: skip
ENUMS = {"as_scalar_type": DTYPES, "as_layout": LAYOUTS, "as_memory_format": MEMORY_FORMATS}
READS = ("as_tensor", "as_custom_obj", "as_token")
SYMBOLIC = {"as_sym_int": "as_int", "as_sym_float": "as_float", "as_sym_bool": "as_bool"}
"""Kinds that are either a value of the graph, under as_name, or a number, under the mapped kind."""
LISTS = {
    "as_ints": "as_int", "as_floats": "as_float", "as_bools": "as_bool", "as_strings": "as_string",
    "as_sym_ints": "as_sym_int", "as_sym_floats": "as_sym_float", "as_sym_bools": "as_sym_bool",
    "as_tensors": "as_tensor", "as_optional_tensors": "as_optional_tensor", "as_nested_tensors": "as_tensors",
    "as_int_lists": "as_ints", "as_float_lists": "as_floats",
}  # fmt: skip
"""Kinds that are lists, and their elements' kinds."""
NON_FINITE = {"Infinity": "inf", "-Infinity": "-inf", "NaN": "nan"}
"""torch's texts for numbers that JSON lacks."""
KEYWORD = 2
"""torch._export.serde.schema.ArgumentKind"""


class SavedArguments:
    """The arguments of a node, and the names of the values they read, in order and with repetitions."""

    def __init__(self, entry: dict[str, Any]) -> None:
        self.reads: list[str] = []
        self.arguments: dict[str, Any] = {}
        for index, argument in enumerate(entry["inputs"]):
            name = _name(entry["target"], argument, index)
            if name in self.arguments:
                raise ValueError(f"argument {name!r} stands twice")
            self.arguments[name] = limit_depth(self._encode(argument["arg"]))

    def _encode(self, argument: dict[str, Any]) -> Any:
        ((kind, content),) = argument.items()
        return self._encode_kind(kind, content)

    def _encode_kind(self, kind: str, content: Any) -> Any:
        if kind in LISTS:
            return encode_list([self._encode_kind(LISTS[kind], item) for item in _list(content)])
        if kind in READS:
            return self._encode_read(content["name"])
        if kind == "as_optional_tensor":
            # An operand is {"as_tensor": {"name": …}} or {"as_none": true}.
            return self._encode(content)
        if kind in SYMBOLIC:
            return (
                self._encode_read(content["as_name"])
                if "as_name" in content
                else _scalar(SYMBOLIC[kind], content[SYMBOLIC[kind]])
            )
        if kind == "as_graph":
            return {"body": _text(content["name"])}
        if kind == "as_string_to_argument":
            return encode_mapping({key: self._encode(content[key]) for key in sorted(content)})
        return _scalar(kind, content)

    def _encode_read(self, name: Any) -> dict[str, Any]:
        self.reads.append(_text(name))
        return {"input": len(self.reads) - 1}


class SavedResults(SavedArguments):
    """A graph's outputs, in the form of `call_arguments`."""

    def __init__(self, outputs: list[dict[str, Any]]) -> None:
        self.reads = []
        values = [self._encode(output) for output in outputs]
        plain = all(isinstance(value, dict) and value.keys() == {"input"} for value in values)
        self.arguments = {} if plain else {"0": limit_depth(encode_list(values))}


def _name(target: str, argument: dict[str, Any], index: int) -> str:
    """Named by the operator's schema; arguments of other targets are numbered unless given by keyword."""
    schema = target.startswith("torch.ops.") and not target.startswith("torch.ops.higher_order.")
    return _text(argument["name"]) if schema or argument.get("kind") == KEYWORD else str(index)


def _scalar(kind: str, content: Any) -> Any:
    """An encoded argument without nested ones."""
    if kind == "as_none":
        return None
    if kind == "as_bool":
        if not isinstance(content, bool):
            raise TypeError(f"true or false is expected, not {str(content)[:40]}")
        return content
    if kind == "as_int":
        return _whole(content)
    if kind == "as_float":
        return _float(content)
    if kind == "as_string":
        return encode_text(_text(content))
    if kind == "as_operator":
        return operation_target(_text(content))
    if kind == "as_complex":
        return {"complex": [_float(content["real"]), _float(content["imag"])]}
    if kind == "as_device":
        index = content.get("index")
        return _text(content["type"]) + ("" if index is None else f":{_whole(index)}")
    if kind in ENUMS:
        return ENUMS[kind].get(_whole(content), "unknown")
    # A kind of a later schema: it counts, although its content is unknown.
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return {"object": f"{kind[:100]} {digest}"}


def _list(content: Any) -> list[Any]:
    if not isinstance(content, list):
        raise TypeError(f"a list is expected, not {str(content)[:40]}")
    return content


def _text(content: Any) -> str:
    if not isinstance(content, str):
        raise TypeError(f"a text is expected, not {str(content)[:40]}")
    return content


def _whole(content: Any) -> int:
    if type(content) is not int or not LEAST_WHOLE <= content <= MOST_WHOLE:
        raise ValueError(f"a whole number of 64 bits is expected, not {str(content)[:40]}")
    return content


def _float(content: Any) -> int | float | str:
    if isinstance(content, str):
        return NON_FINITE[content]
    if type(content) is int:
        return encode_number(float(_whole(content)))
    if type(content) is not float:
        raise TypeError(f"a number is expected, not {str(content)[:40]}")
    return encode_number(content)
