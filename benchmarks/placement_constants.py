"""What the chosen numbers of the exact search for placements are worth: each of them smaller and larger.

The fleets are some of `benchmarks.placement_search`. For each number two values, the other numbers as they are:
processor seconds as a ratio to those with the number as it is, both in this process, in all and for the fleet where the
ratio is furthest from 1. Ends with 1 where a proof contradicts what is found with another number.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from types import ModuleType
from typing import Any, NamedTuple
from unittest.mock import patch

from benchmarks.placement_search import CASES
from torchsplit_core.placement.model.instance import SearchResult
from torchsplit_core.placement.search import (
    beam_search,
    path_program,
    patterns,
    search_thresholds,
    subtour_cuts,
    threshold_problem,
    threshold_search,
)
from torchsplit_core.placement.search.large_segments import cover_search as covers_search
from torchsplit_core.placement.search.large_segments import cover_threshold, minimal_covers

LIMIT_S = 60.0
EQUAL = 1e-6
"""Relative difference of value and bound at which the search ends."""
FLEETS = (
    "80 x 65 in 12 nodes",
    "80 x 65 arbitrary, 1",
    "80 x 65 arbitrary, 3",
    "80 x 65 noisy nodes, 3",
    "80 x 160 of five types, 16 proportional",
)


class Number(NamedTuple):
    """A named constant, the modules that have it, and the values to try instead."""

    name: str
    modules: tuple[ModuleType, ...]
    others: tuple[Any, Any]


NUMBERS = (
    Number("TRY_PART", (threshold_search,), (0.0125, 0.2)),
    Number("LEAST_TRY_S", (threshold_search,), (0.125, 2.0)),
    Number("_ENOUGH", (threshold_search,), (2, 32)),
    Number("_SHORT_S", (threshold_search,), (0.1, 1.6)),
    Number("_REST", (threshold_search,), (0.6, 0.975)),
    Number("WIDTHS", (threshold_problem, cover_threshold), ((40,), (3, 160))),
    Number("_BRANCHES", (beam_search,), (1, 12)),
    Number("_CLASSES", (beam_search,), (16, 256)),
    Number("_FOLLOWERS", (beam_search,), (0.0, 2.0)),
    Number("_ROUNDS", (path_program,), (0, 16)),
    Number("_SLACK", (subtour_cuts,), (0.0025, 0.04)),
    Number("MOST_PATTERNS", (patterns,), (1_500, 24_000)),
    Number("MOST_ARCS", (patterns,), (50_000, 800_000)),
    Number("MOST_SETS", (minimal_covers,), (250, 4_000)),
    Number("_FACTOR", (covers_search,), (2.0, 16.0)),
    Number("_REFUTED", (covers_search,), (1, 8)),
    Number("_SHARE", (covers_search,), (0.0125, 0.2)),
)


def searched(names: Sequence[str]) -> list[tuple[SearchResult, float]]:
    """Search each fleet; returns results and processor seconds. Instances are rebuilt, since they cache throughputs."""
    told = []
    for name in names:
        instance = CASES[name][0]()
        begun = time.process_time()
        found = search_thresholds(instance, time_limit_s=LIMIT_S)
        told.append((found, time.process_time() - begun))
    return told


def with_number(number: Number, value: Any, names: Sequence[str]) -> list[tuple[SearchResult, float]]:
    """Search every fleet with another value of the constant."""
    with ExitStack() as stack:
        for module in number.modules:
            stack.enter_context(patch.object(module, number.name, value))
        return searched(names)


def agree(first: SearchResult, second: SearchResult) -> bool:
    """Whether the two proofs are consistent."""
    slack = 1 + EQUAL
    return first.value <= second.bound * slack and second.value <= first.bound * slack


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="*", choices=FLEETS, default=list(FLEETS), metavar="NAME")
    parser.add_argument("--numbers", nargs="*", default=[number.name for number in NUMBERS], metavar="NAME")
    options = parser.parse_args()
    searched(options.cases[-1:])  # the imports of a first search are not to be counted
    wrong = 0
    print("| number | as it is | tried | seconds, ratio | furthest, ratio | on | proven of those as it is |")
    print("|---|---|---|---|---|---|---|")
    for number in NUMBERS:
        if number.name not in options.numbers:
            continue
        plain = searched(options.cases)
        for value in number.others:
            wrong += _row(number, value, options.cases, plain)
    return int(wrong > 0)


def _row(number: Number, value: Any, names: Sequence[str], plain: list[tuple[SearchResult, float]]) -> int:
    """Print one row; return the number of fleets with a contradiction."""
    found = with_number(number, value, names)
    ratios = [other_s / max(own_s, 1e-3) for (_, own_s), (_, other_s) in zip(plain, found, strict=True)]
    furthest = max(range(len(ratios)), key=lambda place: max(ratios[place], 1 / ratios[place]))
    whole = sum(seconds for _, seconds in found) / sum(seconds for _, seconds in plain)
    proven = sum(one.proven for one, _ in found), sum(one.proven for one, _ in plain)
    room = number.modules[0].__name__.rpartition(".")[2]
    print(
        f"| {room}.{number.name} | {getattr(number.modules[0], number.name)} | {value} | {whole:.2f} "
        f"| {ratios[furthest]:.2f} | {names[furthest]} | {proven[0]} of {proven[1]} |",
        flush=True,
    )
    return sum(not agree(one, other) for (one, _), (other, _) in zip(plain, found, strict=True))


if __name__ == "__main__":
    sys.exit(main())
