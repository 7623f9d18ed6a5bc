"""Names of which no two may be alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from operator import itemgetter
from typing import Any

from torchsplit_core.values.errors import quoted


def free_name(name: str, taken: Collection[str], mark: str = " ") -> str:
    """The name, or the name with `mark` and the first number, from 2 on, that is free."""
    candidate, number = name, 2
    while candidate in taken:
        candidate = f"{name}{mark}{number}"
        number += 1
    return candidate


class RepeatedKey(ValueError):
    """An object of JSON has that key twice."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(f"the key {quoted(key)} stands twice in one object")


def reject_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For `object_pairs_hook` of json: the object, which by itself takes the last of two. Raises RepeatedKey."""
    unique = dict(pairs)
    if len(unique) < len(pairs):
        raise RepeatedKey(max(Counter(key for key, _ in pairs).items(), key=itemgetter(1))[0])
    return unique
