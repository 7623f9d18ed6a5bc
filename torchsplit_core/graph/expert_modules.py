"""Which modules of a model hold experts, by the names of a client's `expert_plan`."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase


def planned_names(pattern: str, names: Iterable[str]) -> tuple[str, ...]:
    """The module names that an entry of a plan means: each step of the path may have wildcards."""
    steps = pattern.split(".")
    return tuple(
        name
        for name in names
        if len(way := name.split(".")) == len(steps) and all(map(fnmatchcase, way, steps))
    )
