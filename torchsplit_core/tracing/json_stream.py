"""Reads a JSON text incrementally, so that a large one is never in memory as objects all at once."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from torchsplit_core.values.names import RepeatedKey, reject_repeated_keys

_SPACE = re.compile(r"[ \t\n\r]*")


class JsonCursor:
    """A position in a JSON text. Raises ValueError for invalid JSON, TypeError for another kind of value.

    `entries` and `items` stop before each value: read it with `value`, or descend with `entries` or `items`, before
    continuing.
    """

    def __init__(self, text: str, at: int = 0) -> None:
        self.text, self.position = text, at
        self._decode = json.JSONDecoder(object_pairs_hook=reject_repeated_keys).raw_decode

    def value(self) -> Any:
        """The whole value at the cursor."""
        value, self.position = self._decode(self.text, self._skip_space())
        return value

    def entries(self) -> Iterator[str]:
        """The keys of the object at the cursor. Raises ValueError for a duplicate."""
        seen: set[str] = set()
        for _ in self._parts("{", "}", "an object"):
            key = self._key()
            if key in seen:
                raise RepeatedKey(key)
            seen.add(key)
            yield key

    def items(self) -> Iterator[None]:
        """One step for each value of the list at the cursor."""
        return self._parts("[", "]", "a list")

    def end(self) -> None:
        """Raise ValueError unless only whitespace follows."""
        if self._skip_space() != len(self.text):
            raise ValueError(f"something follows the end: {self.text[self.position : self.position + 20]!r}")

    def _parts(self, first: str, last: str, kind: str) -> Iterator[None]:
        if self.text[self._skip_space() : self.position + 1] != first:
            raise TypeError(f"{kind} is expected, not {self.text[self.position : self.position + 20]!r}")
        self.position += 1
        if self.text[self._skip_space() : self.position + 1] == last:
            self.position += 1
            return
        while True:
            yield
            separator = self.text[self._skip_space() : self.position + 1]
            if separator not in (",", last):
                raise ValueError(f"',' or {last!r} is expected, not {separator!r}")
            self.position += 1
            if separator == last:
                return

    def _key(self) -> str:
        key = self.value()
        if not isinstance(key, str) or self.text[self._skip_space() : self.position + 1] != ":":
            raise ValueError(f"a key and ':' are expected, not {str(key)[:20]!r}")
        self.position += 1
        return key

    def _skip_space(self) -> int:
        space = _SPACE.match(self.text, self.position)
        assert space is not None  # the pattern matches an empty text too
        self.position = space.end()
        return self.position
