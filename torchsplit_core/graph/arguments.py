"""Arguments of operations in the graph contract: plain JSON, bounded in depth and length.

A number, a text, true, false or null is itself; infinities and NaN are the texts "inf", "-inf", "nan"; a dtype,
layout, memory format, device or operator is its name; a list is a list. An object represents anything else:

- {"input": k}: the value named by entry k of the node's `inputs`
- {"body": name}: a body among the node's subgraphs
- {"complex": [re, im]}, {"slice": [start, stop, step]}, {"entries": {key: value}}: Python's own
- {"constant": [dtype, shape]}: a tensor in the code of a body
- {"object": text}: any other object, by its class
- {"length": n, "sha256": hex}: anything too long or too deep, by its digest
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any

from torchsplit_core.values import InputFault, quoted
from torchsplit_core.values.errors import json_words

MOST_DEPTH = 8
"""Nesting of lists; torch's own operators have two."""
LONGEST_LIST = 256
LONGEST_TEXT = 1000
LONGEST_NAME = 200
MOST_ARGUMENTS = 100_000
"""A body that replaces a part of a model takes each of its weights as an argument."""
MOST_WHOLE, LEAST_WHOLE = 2**64 - 1, -(2**63)
"""torch uses 64-bit integers, signed or not."""
NOT_FINITE = ("inf", "-inf", "nan")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NESTING = frozenset({"complex", "slice", "entries", "constant"})
_FORMS = _NESTING | {"input", "body", "object"}


def encode_number(value: float) -> int | float | str:
    """A number, or the text of one that JSON lacks."""
    return value if isfinite(value) else str(value)


def encode_text(value: str) -> str | dict[str, Any]:
    """A text, or its digest if it is too long."""
    return value if len(value) <= LONGEST_TEXT else _digest(len(value), value)


def encode_list(values: Iterable[Any]) -> list[Any] | dict[str, Any]:
    """A list of encoded values, or its digest if it is too long."""
    items = list(values)
    return items if len(items) <= LONGEST_LIST else _digest(len(items), items)


def encode_mapping(values: Mapping[str, Any]) -> dict[str, Any]:
    """Keys and encoded values, or their digest if they are too many."""
    ordered = {key: values[key] for key in sorted(values)}
    return {"entries": ordered} if len(ordered) <= LONGEST_LIST else _digest(len(ordered), ordered)


def limit_depth(value: Any, depth: int = 1) -> Any:
    """An encoded argument with parts that are too deep replaced by their digest."""
    if isinstance(value, list):
        if depth > MOST_DEPTH:
            return _digest(len(value), value)
        return [limit_depth(item, depth + 1) for item in value]
    if not isinstance(value, dict) or not _NESTING.issuperset(value):
        return value
    ((form, content),) = value.items()
    if depth + (form != "entries") > MOST_DEPTH:
        return _digest(len(content), value)
    if form == "entries":
        return {form: {key: limit_depth(item, depth + 1) for key, item in content.items()}}
    return {form: limit_depth(content, depth + 1)}


def _digest(length: int, value: Any) -> dict[str, Any]:
    content = json.dumps(value, sort_keys=True).encode()
    return {"length": length, "sha256": hashlib.sha256(content).hexdigest()}


def check_arguments(given: Any, inputs: int, where: str) -> dict[str, Any]:
    """The arguments of a node that reads so many values. Raises InputFault if they break the contract."""
    if not isinstance(given, Mapping):
        raise _fault(where, f"is {json_words(given)}, not an object")
    if len(given) > MOST_ARGUMENTS:
        raise _fault(where, f"has {len(given)} arguments, more than {MOST_ARGUMENTS}")
    return {_name(name, where): _check_value(value, inputs, where, 1) for name, value in given.items()}


def _check_value(value: Any, inputs: int, where: str, depth: int) -> Any:
    if isinstance(value, str):
        if len(value) > LONGEST_TEXT:
            raise _fault(where, f"has a text of {len(value)} characters, more than {LONGEST_TEXT}")
        return _unicode(value, where)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        if not LEAST_WHOLE <= value <= MOST_WHOLE:
            raise _fault(where, f"has a whole number beyond 64 bits: {quoted(value)}")
        return value
    if isinstance(value, float):
        if not isfinite(value):
            raise _fault(
                where, f"has the number {value}, which stands as text in JSON: {', '.join(NOT_FINITE)}"
            )
        return value
    if isinstance(value, (list, tuple)):
        _check_depth(where, depth)
        if len(value) > LONGEST_LIST:
            raise _fault(where, f"has a list of {len(value)} entries, more than {LONGEST_LIST}")
        return [_check_value(item, inputs, where, depth + 1) for item in value]
    if isinstance(value, Mapping):
        return _check_form(value, inputs, where, depth)
    raise _fault(where, f"has a {type(value).__name__}, which JSON does not have")


def _check_form(value: Mapping[Any, Any], inputs: int, where: str, depth: int) -> dict[str, Any]:
    """An object that represents what JSON lacks."""
    if value.keys() == {"length", "sha256"}:
        length, digest = value["length"], value["sha256"]
        if type(length) is not int or not 0 <= length <= MOST_WHOLE or not _is_digest(digest):
            raise _fault(where, f"has {quoted(dict(value))}, not a length and 64 hexadecimal digits")
        return {"length": length, "sha256": digest}
    if len(value) != 1 or not _FORMS.issuperset(value):
        raise _fault(
            where,
            f"has an object with the keys {quoted(', '.join(map(str, value)))}, not one of "
            f"{', '.join(sorted(_FORMS))} or length and sha256",
        )
    ((form, content),) = value.items()
    if form == "input":
        if type(content) is not int or not 0 <= content < inputs:
            raise _fault(
                where, f"has input {json_words(content)}, no place among its {inputs} inputs counted from 0"
            )
    elif form in ("body", "object"):
        if not isinstance(content, str):
            raise _fault(where, f"has a {form} that is {json_words(content)}, not text")
    elif form == "entries":
        _check_depth(where, depth)
        if not isinstance(content, Mapping) or len(content) > LONGEST_LIST:
            raise _fault(where, f"has entries that are not an object of at most {LONGEST_LIST} keys")
        return {
            form: {
                _name(key, where): _check_value(item, inputs, where, depth + 1)
                for key, item in content.items()
            }
        }
    elif not isinstance(content, (list, tuple)):
        raise _fault(where, f"has a {form} that is {json_words(content)}, not a list")
    return {form: _check_value(content, inputs, where, depth + 1)}


def _check_depth(where: str, depth: int) -> None:
    if depth > MOST_DEPTH:
        raise _fault(where, f"nests more than {MOST_DEPTH} deep")


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and _SHA256.fullmatch(value) is not None


def _name(name: Any, where: str) -> str:
    if not isinstance(name, str) or not 1 <= len(name) <= LONGEST_NAME:
        raise _fault(where, f"has the name {json_words(name)}, not text of 1 to {LONGEST_NAME} characters")
    return _unicode(name, where)


def _unicode(value: str, where: str) -> str:
    if not value.isascii() and _LONE_SURROGATE.search(value):
        raise _fault(where, f"has half a surrogate pair in {quoted(value)}")
    return value


def _fault(where: str, problem: str) -> InputFault:
    return InputFault(where, problem, "Correct the file, or write it again from the model.")
