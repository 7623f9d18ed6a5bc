"""Segments of a component as multisets of twin classes, and which may follow which."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import combinations_with_replacement, product
from operator import and_

import numpy as np

from torchsplit_core.placement.search.network import Classes
from torchsplit_core.placement.search.table import Items

MOST_PATTERNS = 20_000
MOST_PAIRS = 60_000_000


@dataclass(frozen=True)
class Patterns:
    """counts: (patterns, classes), GPUs of each class. item: of each pattern. gate_of: the gate behind a pattern.

    A gate is a set of classes, all those that every GPU of a pattern has a fast link to: patterns with one gate
    have the same followers. arcs: (gate, pattern) columns, the patterns whose classes all lie in the gate.
    """

    counts: np.ndarray
    item: np.ndarray
    gate_of: np.ndarray
    gates: int
    arcs: np.ndarray


def build_patterns(classes: Classes, items: Items) -> Patterns | None:
    """All patterns of these items; None where there are too many."""
    width = len(classes.kinds)
    followers = [_mask(row) for row in classes.links]
    of_kind = {kind: [one for one in range(width) if classes.kinds[one] == kind] for kind in classes.kinds}
    sizes = [len(members) for members in classes.members]
    rows: list[tuple[int, ...]] = []
    item_of: list[int] = []
    gate_of: list[int] = []
    gates: dict[int, int] = {}
    for item in range(len(items.sizes)):
        for chosen in _spread(items.counts[item], of_kind):
            if any(chosen.count(one) > sizes[one] for one in set(chosen)):
                continue
            if len(rows) == MOST_PATTERNS:
                return None
            gate = reduce(and_, (followers[one] for one in chosen))
            rows.append(chosen)
            item_of.append(item)
            gate_of.append(gates.setdefault(gate, len(gates)))
    if len(rows) * len(gates) > MOST_PAIRS:
        return None
    counts = np.zeros((len(rows), width), dtype=np.int64)
    for number, chosen in enumerate(rows):
        np.add.at(counts[number], list(chosen), 1)
    outside = np.array([[not gate >> one & 1 for one in range(width)] for gate in gates], dtype=np.float32)
    inside = outside.reshape(len(gates), width) @ (counts > 0).T.astype(np.float32) == 0
    arcs = np.array(np.nonzero(inside), dtype=np.int64)
    return Patterns(counts, np.array(item_of), np.array(gate_of), len(gates), arcs)


def _mask(row: np.ndarray) -> int:
    return sum(1 << one for one in np.flatnonzero(row).tolist())


def _spread(counts: np.ndarray, of_kind: dict[int, list[int]]) -> Iterator[tuple[int, ...]]:
    """Every way to take an item's GPUs from classes of their kinds, as ascending classes kind by kind."""
    wanted = [(of_kind.get(kind, []), int(counts[kind])) for kind in np.flatnonzero(counts).tolist()]
    for parts in product(*(combinations_with_replacement(*one) for one in wanted)):
        yield tuple(one for part in parts for one in part)
