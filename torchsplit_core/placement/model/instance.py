"""The kernel of a placement: what the exact search is given, and what it gives back.

No file format, no model of a GPU, no unit of memory in here: a segment's throughput is a function of the kinds
of its GPUs and of its layer count, a link's a number, both in one unit of throughput.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Instance:
    """One placement problem.

    layers: how many there are (M). kinds[g]: the kind of GPU g (GPUs of one kind are alike in every respect but
    their links). links: float64 (N, N), the value of a link from GPU i to GPU j in units of throughput (0: no
    link; the diagonal is not read). max_gpus: the most GPUs of a segment. value(kinds, count): the throughput of a
    segment of `count` layers on a multiset of kinds, given ascending; 0.0 where memory or a rule forbids it. It is
    pure and deterministic, and need not be monotone in `count`.

    shares(t, size), where given: float64 (kinds, M), the most of a batch, as a share of it, that a GPU of each kind
    takes on in a segment of `size` GPUs and 1 … M layers that is to reach t; 0 where it must not take part. A segment
    that reaches t has no GPU of share 0, and its shares sum to 1 or more. Where kinds are of several groups, those of
    a segment are of one. Both tell what large segments cannot reach without a look at every multiset of kinds.
    """

    layers: int
    kinds: tuple[int, ...]
    links: np.ndarray
    max_gpus: int
    value: Callable[[tuple[int, ...], int], float]
    shares: Callable[[float, int], np.ndarray] | None = None
    groups: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Found:
    """What a search found.

    segments: in pipeline order, each (layer count, GPU indices ascending). value: the least of the segments'
    throughputs and of the links between neighbours. bound: no plan is better. proven: value equals bound.
    No segments: none was found; none exists only where this is proven, with bound 0.
    """

    value: float
    bound: float
    proven: bool
    segments: tuple[tuple[int, tuple[int, ...]], ...]
    statistics: Mapping[str, float]
