"""Segments of a component as multisets of symmetry classes, and which may follow which."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from torchsplit_core.placement.search.network import GpuClasses
from torchsplit_core.placement.search.segment_table import Items

MOST_PATTERNS, MOST_ARCS = 6_000, 200_000
"""Larger path programs are not built; an arc is a column of a program. In benchmarks/placement_constants.py a quarter
and four times of either make no difference beyond the noise (a third)."""


@dataclass(frozen=True)
class SegmentPatterns:
    """counts: (patterns, classes), GPUs of each class. item: of each pattern. gate_of: the gate of a pattern.

    A gate is a set of classes, all those to which every GPU of a pattern has a fast link: patterns with one gate have
    the same followers. arcs: (gate, pattern) columns, the patterns whose classes all lie in the gate.
    """

    counts: np.ndarray
    item: np.ndarray
    gate_of: np.ndarray
    gates: int
    arcs: np.ndarray


def build_patterns(classes: GpuClasses, items: Items) -> SegmentPatterns | None:
    """All patterns of these items that some segment can follow or precede; None if there are too many."""
    width = len(classes.kinds)
    segments = list(islice(_list_segments(classes, items), MOST_PATTERNS + 1))
    gates: dict[int, int] = {}
    gate_of = [gates.setdefault(gate, len(gates)) for _, _, gate in segments]
    if len(segments) > MOST_PATTERNS:
        return None
    counts = np.zeros((len(segments), width), dtype=np.int64)
    for number, (_, chosen, _) in enumerate(segments):
        np.add.at(counts[number], list(chosen), 1)
    outside = np.array(
        [[not gate >> class_index & 1 for class_index in range(width)] for gate in gates], dtype=np.float32
    )
    inside = outside.reshape(len(gates), width) @ (counts > 0).T.astype(np.float32) == 0
    if np.count_nonzero(inside) > MOST_ARCS:
        return None
    arcs = np.array(np.nonzero(inside), dtype=np.int64)
    return SegmentPatterns(
        counts, np.array([item for item, _, _ in segments]), np.array(gate_of), len(gates), arcs
    )


def _list_segments(classes: GpuClasses, items: Items) -> Iterator[tuple[int, tuple[int, ...], int]]:
    """(item, classes ascending by kind, gate) of every set of GPUs that has a common neighbour on some side."""
    after, before = ([_bit_mask(row) for row in links] for links in (classes.links, classes.links.T))
    sizes = [len(members) for members in classes.members]
    of_kind: dict[int, list[int]] = {}
    for one, kind in enumerate(classes.kinds):
        of_kind.setdefault(kind, []).append(one)

    def extend(
        kinds: list[int], chosen: tuple[int, ...], gate: int, source: int
    ) -> Iterator[tuple[tuple[int, ...], int]]:
        if not gate and not source:
            return
        if len(chosen) == len(kinds):
            yield chosen, gate
            return
        kind = kinds[len(chosen)]
        least = chosen[-1] if chosen and kinds[len(chosen) - 1] == kind else 0
        for class_index in of_kind.get(kind, ()):
            if class_index >= least and chosen.count(class_index) < sizes[class_index]:
                yield from extend(
                    kinds, (*chosen, class_index), gate & after[class_index], source & before[class_index]
                )

    every = (1 << len(sizes)) - 1
    for item in range(len(items.sizes)):
        kinds = np.repeat(np.arange(items.counts.shape[1]), items.counts[item]).tolist()
        for chosen, gate in extend(kinds, (), every, every):
            yield item, chosen, gate


def _bit_mask(row: np.ndarray) -> int:
    return sum(1 << bit for bit in np.flatnonzero(row).tolist())
