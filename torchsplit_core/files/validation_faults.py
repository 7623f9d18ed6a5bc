"""What pydantic complains of in a contract file, as one fault: the field, what is wrong with it, the remedy."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torchsplit_core.values import InputFault, quoted, suggestion
from torchsplit_core.values.errors import json_words
from torchsplit_core.values.limits import LONGEST_NAME, SMALLEST_POSITIVE
from torchsplit_core.values.plan.demand_over_day import TIME_OF_DAY
from torchsplit_core.values.plan.prices import DATE_PATTERN

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

_KINDS: Mapping[str, tuple[str, str]] = {
    "int": ("a whole number", "Give a whole number."),
    "float": ("a number", "Give a number."),
    "string_type": ("text", "Give text, in quotes."),
    "bool": ("true or false", "Give true or false."),
    "list": ("a list", "Give a list, in square brackets."),
    "dict": ("an object", "Give an object, in braces."),
    "model": ("an object", "Give an object, in braces."),
}
"""Pydantic's name for a wrong type, of all but texts its first word → the type, and the remedy."""

_PATTERNS: Mapping[str, tuple[str, str]] = {
    TIME_OF_DAY: ("a time HH:MM from 00:00 to 24:00", "Write for example 07:00."),
    DATE_PATTERN: ("a date YYYY-MM-DD", "Write for example 2026-11-20."),
    "^[0-9a-f]{64}$": ("64 hexadecimal digits, a SHA-256", "Leave it as TorchSplit wrote it."),
}
"""The pattern of a text → what it should be, and the remedy."""

FieldPath = tuple[str | int, ...]


def fault_of(error: ValidationError, model: type[BaseModel], data: Any, origin: str) -> InputFault:
    """The first complaint of `error`, which `model` raised about the plain `data`; the others are counted."""
    complaints = error.errors(include_url=False)
    first = complaints[0]
    path = _field_path(first, data)
    kind: str = first["type"]
    if kind == "extra_forbidden":
        known = _known_fields(model.model_json_schema(), path[:-1], data)
        problem, remedy = "is not a known field", suggestion(path[-1], known, "fields")
    elif kind in ("union_tag_not_found", "union_tag_invalid"):
        context = first["ctx"]
        tag = context["discriminator"]
        # A function's name: it reads the field kind, which one of the members may lack.
        path = (*path, "kind" if tag.endswith("()") else tag.strip("'"))
        problem, remedy = _MISSING
        if kind == "union_tag_invalid":
            problem, remedy = _unknown_value(context["tag"], context["expected_tags"])
    else:
        problem, remedy = problem_of(first)
        expected_types = [
            _expected_type(complaint["type"])
            for complaint in complaints
            if _field_path(complaint, data) == path
        ]
        if len(expected_types) > 1 and all(expected_types):
            nouns = " or ".join(dict.fromkeys(complaint[0] for complaint in expected_types if complaint))
            problem, remedy = f"is {json_words(first['input'])}, not {nouns}", _FORMATS_REMEDY
    others = len({_field_path(complaint, data) for complaint in complaints}) - 1
    if others:
        problem += f" (and {others} more field{'s are' if others > 1 else ' is'} at fault)"
    where = _format_path(path)
    return InputFault(f"{origin}: {where}" if where else origin, problem, remedy)


_FORMATS_REMEDY = "Correct it; docs/file-formats.md describes the field."
_MISSING = ("is missing", "Add it; docs/file-formats.md shows an example.")


def problem_of(complaint: Mapping[str, Any]) -> tuple[str, str]:
    """One complaint about a value, in the indicative, and its remedy."""
    kind, context, value = complaint["type"], complaint.get("ctx", {}), complaint["input"]
    if kind == "missing":
        return _MISSING
    if kind == "literal_error":
        return _unknown_value(value, context["expected"])
    if kind == "finite_number":
        return f"is {value}, not a finite number", "Give a number."
    ruled = _out_of_range(context, value) or _wrong_length(kind, context, value)
    if ruled is not None:
        return ruled
    wanted = _expected_type(kind)
    if wanted is not None:
        return f"is {json_words(value)}, not {wanted[0]}", wanted[1]
    if kind == "string_pattern_mismatch":
        words, remedy = _PATTERNS.get(context["pattern"], ("in the form of this field", _FORMATS_REMEDY))
        return f"is {quoted(value)}, not {words}", remedy
    if kind == "string_unicode":
        return "contains half a surrogate pair", "Correct the text."
    message: str = complaint["msg"]
    return message[:1].lower() + message[1:], _FORMATS_REMEDY


def _expected_type(kind: str) -> tuple[str, str] | None:
    """The type that the value should have, and the remedy, where the type is what is wrong."""
    return _KINDS.get(kind if kind.startswith("string_") else kind.partition("_")[0])


def _out_of_range(context: Mapping[str, Any], value: Any) -> tuple[str, str] | None:
    """A number on the wrong side of a limit."""
    least, above, most, below = (context.get(name) for name in ("ge", "gt", "le", "lt"))
    if above is not None or (least == SMALLEST_POSITIVE and value <= 0):
        limit = _number(above or 0)
        return f"is {quoted(value)}, not above {limit}", f"Give a number above {limit}."
    if least is not None:
        name = "least positive value" if least == SMALLEST_POSITIVE else "least value"
        return f"is {quoted(value)}, below the {name} {_number(least)}", f"Give {_number(least)} or more."
    if below is not None:
        return f"is {quoted(value)}, not below {_number(below)}", f"Give a number below {_number(below)}."
    if most is not None:
        return (
            f"is {quoted(value)}, above the greatest value {_number(most)}",
            f"Give {_number(most)} or less.",
        )
    return None


def _number(limit: float) -> str:
    return str(limit) if isinstance(limit, int) else f"{limit:g}"


def _wrong_length(kind: str, context: Mapping[str, Any], value: Any) -> tuple[str, str] | None:
    """A list or a text of too few or too many entries."""
    singular, plural = ("character", "characters") if kind.startswith("string_") else ("entry", "entries")
    if kind.endswith("too_short"):
        least = context["min_length"]
        problem = (
            "is empty"
            if not value
            else f"has {len(value)} {singular if len(value) == 1 else plural}, fewer than {least}"
        )
        return problem, f"Give at least {least} {singular if least == 1 else plural}."
    if kind.endswith("too_long"):
        most = context["max_length"]
        return f"has {len(value)} {plural}, more than {most}", f"Give at most {most}."
    return None


def _unknown_value(value: Any, expected: str) -> tuple[str, str]:
    """A word that is none of those which pydantic lists."""
    known = [word for word in re.findall(r"'([^']*)'", expected) if word]
    if not isinstance(value, str) or not known:
        return f"is {json_words(value)}, not {expected}", "Give one of these."
    return f"is {quoted(value)}, not a known value", suggestion(value, known, "values")


def _field_path(complaint: Mapping[str, Any], data: Any) -> FieldPath:
    """Where in the file: pydantic's place without the names of types and of members of a union."""
    path: list[str | int] = []
    for part in complaint["loc"]:
        inside = isinstance(part, int) if isinstance(data, list) else isinstance(data, dict) and part in data
        if inside:
            data = data[part]
        if inside or (complaint["type"] == "missing" and part == complaint["loc"][-1]):
            path.append(part)
    return tuple(path)


def _format_path(path: FieldPath) -> str:
    """gpus[0].count"""
    shown = (f"[{part}]" if isinstance(part, int) else f".{part[:LONGEST_NAME]}" for part in path)
    return "".join(shown).removeprefix(".")


def _known_fields(schema: dict[str, Any], path: Sequence[str | int], data: Any) -> list[str]:
    """The fields that an object of the file may have, by the schema of the whole file."""
    nodes = list(_alternatives(schema, schema, data))
    for part in path:
        data = data[part]
        inner = (
            node.get("properties", {}).get(part) or node.get("additionalProperties")
            if isinstance(part, str)
            else node.get("items")
            for node in nodes
        )
        nodes = [
            alternative
            for node in inner
            if isinstance(node, dict)
            for alternative in _alternatives(node, schema, data)
        ]
    return [name for node in nodes for name in node.get("properties", ())]


def _alternatives(node: dict[str, Any], schema: dict[str, Any], data: Any) -> Iterator[dict[str, Any]]:
    """The plain schemas that a node of a schema stands for; of a tagged union, those of the tag."""
    if "$ref" in node:
        node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    tagged = node.get("discriminator")
    if tagged and (named := tagged["mapping"].get(data.get(tagged["propertyName"]))):
        yield from _alternatives({"$ref": named}, schema, data)
        return
    inner = node.get("anyOf") or node.get("oneOf")
    if not inner:
        yield node
    for member in inner or ():
        yield from _alternatives(member, schema, data)
