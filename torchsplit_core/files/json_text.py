"""Untrusted JSON: its memory is bounded before it is parsed, and every fault becomes one message.

The size of a text does not bound its memory: `{},` is three bytes and an object of 64. Counting the marks of the
syntax is quick and gives an upper figure; a text above the limit is refused unread.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from typing import Any

from torchsplit_core.values import InputFault, quoted
from torchsplit_core.values.names import RepeatedKey, reject_repeated_keys

TRUSTED_BYTES = 6 * 2**30
"""Memory that reading a file on the command line, or one of our own, may need: an upper figure, about twice the
true one. Room for a graph of a million nodes with its profile, and for a matrix of 4,096 GPUs."""
UPLOAD_BYTES = 768 * 2**20
"""The same for a file that came through a browser."""
MOST_KEYS = 10_000
"""Of one object: a checker may keep a fault for each."""

# CPython 3.11, 64 bits (sys.getsizeof): upper figures of what json.loads makes of each mark.
_OBJECT, _FIRST_ENTRY, _ENTRY, _LIST, _VALUE, _TEXT = 64, 75, 45, 88, 41, 64
# What checking adds to each object and each value: file model and frozen value.
# Upper figures, measured with pydantic 2.14 for every format.
_CHECKED_OBJECT, _CHECKED_VALUE = 1500, 40

_MARKS = '{[:,"'
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
# Everything but half a pair of \uD8xx\uDCxx; possessive, so that nothing is tried twice.
_PAIRED = re.compile(
    r"(?:[^\\]++|\\[^u]|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}"
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*+",
    re.DOTALL,
)
_SURROGATE = re.compile("[\ud800-\udfff]")
_FOUR_BYTES = re.compile(b"[\xf0-\xf4]")  # the first byte of a character beyond U+FFFF


_MESSAGES = {
    "Expecting value": "a value is missing",
    "Expecting property name enclosed in double quotes": "a key in double quotes is missing",
    "Expecting ',' delimiter": "a comma is missing",
    "Expecting ':' delimiter": "a colon is missing",
    "Extra data": "text follows the end of the value",
    "Unterminated string starting at": "the text that begins here has no closing quote",
    "Invalid control character at": "a text contains a control character",
}
"""What json says of a text that it cannot read → the same in the indicative."""


@dataclass(frozen=True, slots=True)
class JsonSize:
    """The marks of a JSON text; those inside of texts count too, so every figure is an upper one."""

    text_bytes: int
    objects: int
    lists: int
    entries: int
    values: int
    quotes: int

    @property
    def read_bytes(self) -> int:
        """At most this much memory holds the text and what json.loads makes of it."""
        objects = (
            self.objects * _OBJECT + min(self.objects, self.entries) * _FIRST_ENTRY + self.entries * _ENTRY
        )
        rest = self.lists * _LIST + self.values * _VALUE + self.quotes // 2 * _TEXT
        return objects + rest + 2 * self.text_bytes

    @property
    def checked_bytes(self) -> int:
        """The same with the checking field by field."""
        return self.read_bytes + self.objects * _CHECKED_OBJECT + self.values * _CHECKED_VALUE


def measure(text: str | bytes) -> JsonSize:
    """Count the marks of a text, or of its UTF-8: a second for a gigabyte."""
    if isinstance(text, str):
        return _json_size(sys.getsizeof(text), *map(text.count, _MARKS))
    width = 1 if text.isascii() else 4 if _FOUR_BYTES.search(text) else 2
    return _json_size(width * len(text), *(text.count(mark.encode()) for mark in _MARKS))


def _json_size(text_bytes: int, objects: int, lists: int, entries: int, commas: int, quotes: int) -> JsonSize:
    return JsonSize(text_bytes, objects, lists, entries, commas + objects + lists, quotes)


def parse_json(
    text: str, origin: str, *, memory_bytes: int = TRUSTED_BYTES, what: str = "a contract file"
) -> Any:
    """The JSON value of a text, with or without a byte order mark.

    Raises InputFault for what is none, or could need more memory than it may.
    """
    text = text.removeprefix("\ufeff")
    refuse_large(measure(text).read_bytes, memory_bytes, origin)
    try:
        value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_checked_object)
    except json.JSONDecodeError as error:
        if not text.strip():
            raise InputFault(origin, "is empty", f"Pass {what}.") from error
        raise InputFault(
            f"{origin}: line {error.lineno}, column {error.colno}",
            f"is not JSON: {_MESSAGES.get(error.msg, error.msg[:1].lower() + error.msg[1:])}",
            "Correct the file.",
        ) from error
    except RecursionError as error:
        raise InputFault(origin, "has lists or objects nested too deeply to read", f"Pass {what}.") from error
    except InputFault as fault:
        raise InputFault(origin, fault.problem, fault.remedy) from fault
    except RepeatedKey as error:
        raise _repeated_key_fault(text, origin, error.key) from error
    except ValueError as error:
        # int() takes at most sys.get_int_max_str_digits() digits, for more take quadratic time.
        raise InputFault(origin, "has a number of thousands of digits", "Shorten the number.") from error
    except MemoryError as error:
        raise InputFault(
            origin, f"has {len(text)} characters, too many for the free memory", "Pass a smaller file."
        ) from error
    if not _has_whole_surrogates(text):
        raise InputFault(origin, "contains half a surrogate pair", "Correct the text that holds it.")
    return value


def refuse_large(needed: int, memory_bytes: int, origin: str) -> None:
    """Raises InputFault for a file whose reading could need more than `memory_bytes`."""
    if needed > memory_bytes:
        remedy = "Split the file."
        if memory_bytes < TRUSTED_BYTES:
            remedy = f"Split the file, or pass it to the command line, which reads up to {TRUSTED_BYTES >> 20} MiB."
        raise InputFault(
            origin,
            f"could need {needed >> 20} MiB of memory to read, above the limit of {memory_bytes >> 20} MiB",
            remedy,
        )


def _has_whole_surrogates(text: str) -> bool:
    """Whether no text has half a surrogate pair, which no file in UTF-8 could hold."""
    if not text.isascii() and _SURROGATE.search(text):
        return False
    return _ESCAPED_SURROGATE.search(text) is None or _PAIRED.fullmatch(text) is not None


_PARTS = re.compile(r'("(?:[^"\\]++|\\.)*+")[ \t\n\r]*(:?)|[{}]', re.DOTALL)


def _repeated_key_fault(text: str, origin: str, key: str) -> InputFault:
    """The fault for a key that stands twice in an object of the text, which is JSON up to there: both lines."""
    seen: list[dict[str, int]] = []
    first = second = 0
    for part in _PARTS.finditer(text):
        if part[0] == "{":
            seen.append({})
        elif part[0] == "}":
            seen.pop()
        elif part[2] and json.loads(part[1]) == key:
            if key in seen[-1]:
                first, second = seen[-1][key], part.start()
                break
            seen[-1][key] = part.start()
    line, column = text.count("\n", 0, second) + 1, second - text.rfind("\n", 0, second)
    return InputFault(
        f"{origin}: line {line}, column {column}",
        f"has the key {quoted(key)} a second time in one object, after line {text.count(chr(10), 0, first) + 1}",
        "Leave one of the two.",
    )


def _refuse_constant(name: str) -> float:
    raise InputFault(
        "", f"has the number {name}, which JSON does not have", "Replace it by a number, or by null."
    )


def _checked_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):  # else not called: a call an object would cost a twentieth of the reading
        reject_repeated_keys(pairs)
    if len(result) > MOST_KEYS:
        raise InputFault(
            "", f"has an object of {len(result)} keys, more than {MOST_KEYS}", "Split the object."
        )
    return result
