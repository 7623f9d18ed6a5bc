"""Static costs of a model's blocks, used to assign them to pipeline stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

STATES = 4
"""A weight, its gradient and two moments: the most that a step stores of a weight, in weights."""


@dataclass(frozen=True, slots=True)
class BlockCosts:
    """The blocks in order: names, FLOPs of their matrix products and bytes that they move, forward at one batch size.

    `weight_bytes`: of their weights; `activation_bytes`: saved of one sample for the backward pass, in single
    precision, without recomputation.
    """

    names: tuple[str, ...]
    flops: tuple[float, ...]
    moved_bytes: tuple[float, ...]
    weight_bytes: tuple[float, ...]
    activation_bytes: tuple[float, ...]

    def kind(self, place: int) -> tuple[float, ...]:
        """The key of equal work: the seconds of blocks with the same key compare devices."""
        return self.flops[place], self.moved_bytes[place], self.weight_bytes[place]

    def max_bytes(self, place: int, samples: int) -> float:
        """The most bytes that a block adds to a device with `samples` samples in flight."""
        return STATES * self.weight_bytes[place] + samples * self.activation_bytes[place]

    def describe(self, places: range) -> str:
        """The names of consecutive blocks."""
        first, last = self.names[places.start], self.names[places.stop - 1]
        return first if len(places) == 1 else f"{first} to {last}"


def ranges_of(layers: Sequence[int]) -> tuple[range, ...]:
    """The block indices of each stage, from the number of blocks in each."""
    return tuple(range(first, stop) for first, stop in pairwise(accumulate(layers, initial=0)))
