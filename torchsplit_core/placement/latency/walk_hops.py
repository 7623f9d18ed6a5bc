"""Hops between the states of walks (walks.py): those between homes by pattern, those within a home by state.

A state is a pattern and how many GPUs of its home were visited. A hop from another home leads to the state in which
these are the pattern's own, from any state of its pattern; so the least over the states of a pattern is enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class WalkHops:
    """pattern: of each state, ascending from 0. enters: states that a hop from another home leads to.

    between_s: (patterns, patterns), seconds of a hop from row to column between homes. tail, head, within_s: states and
    seconds of hops within a home.
    """

    pattern: np.ndarray
    enters: np.ndarray
    between_s: np.ndarray
    tail: np.ndarray
    head: np.ndarray
    within_s: np.ndarray

    def only(self, keep: np.ndarray) -> WalkHops:
        """Only these states, ascending."""
        patterns, pattern = np.unique(self.pattern[keep], return_inverse=True)
        place = np.full(len(self.pattern), -1)
        place[keep] = np.arange(len(keep))
        stay = (place[self.tail] >= 0) & (place[self.head] >= 0)
        return WalkHops(
            pattern,
            self.enters[keep],
            self.between_s[np.ix_(patterns, patterns)],
            place[self.tail[stay]],
            place[self.head[stay]],
            self.within_s[stay],
        )

    def forward(self, cost: np.ndarray) -> np.ndarray:
        """The least cost before each state, over a hop from any state of these costs."""
        between = _through(np.minimum.reduceat(cost, self._starts), self.between_s)
        least = np.where(self.enters, between[self.pattern], np.inf)
        return self._with_edges(least, cost, self._by_head, self.tail, self.head)

    def backward(self, cost: np.ndarray) -> np.ndarray:
        """The least cost after each state, over a hop to any state of these costs."""
        entered = np.minimum.reduceat(np.where(self.enters, cost, np.inf), self._starts)
        least = _through(entered, self.between_s.T)[self.pattern]
        return self._with_edges(least, cost, self._by_tail, self.head, self.tail)

    def into(self, state: int) -> np.ndarray:
        """Seconds of a hop to the state from every state."""
        hop_s = np.full(len(self.pattern), np.inf)
        if self.enters[state]:
            hop_s = self.between_s[self.pattern, self.pattern[state]]
        edges = self.head == state
        hop_s[self.tail[edges]] = np.minimum(hop_s[self.tail[edges]], self.within_s[edges])
        return hop_s

    def out_of(self, state: int) -> np.ndarray:
        """Seconds of a hop from the state to every state."""
        hop_s = np.where(self.enters, self.between_s[self.pattern[state]][self.pattern], np.inf)
        edges = self.tail == state
        hop_s[self.head[edges]] = np.minimum(hop_s[self.head[edges]], self.within_s[edges])
        return hop_s

    @cached_property
    def _starts(self) -> np.ndarray:
        return np.flatnonzero(np.diff(self.pattern, prepend=-1))

    @cached_property
    def _by_head(self) -> np.ndarray:
        return np.argsort(self.head, kind="stable")

    @cached_property
    def _by_tail(self) -> np.ndarray:
        return np.argsort(self.tail, kind="stable")

    def _with_edges(
        self, least: np.ndarray, cost: np.ndarray, order: np.ndarray, source: np.ndarray, target: np.ndarray
    ) -> np.ndarray:
        """The least also over hops within homes, given in the order of their targets."""
        if len(order):
            ends = target[order]
            starts = np.flatnonzero(np.diff(ends, prepend=-1))
            reached = np.minimum.reduceat(cost[source[order]] + self.within_s[order], starts)
            least[ends[starts]] = np.minimum(least[ends[starts]], reached)
        return least


def _through(cost: np.ndarray, hop_s: np.ndarray) -> np.ndarray:
    able = np.flatnonzero(np.isfinite(cost))
    if not len(able):
        return np.full(len(cost), np.inf)
    least: np.ndarray = (cost[able, None] + hop_s[able]).min(axis=0)
    return least
