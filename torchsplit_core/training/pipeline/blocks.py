"""What is known of a chain's blocks before they run, for whoever deals them out to stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

STATES = 4
"""A weight, its gradient and two moments: the most that a step keeps of a weight, in weights."""


@dataclass(frozen=True, slots=True)
class BlockCosts:
    """The blocks in their order: names, FLOPs of their products and bytes that they move, forward at one batch size.

    `weight_bytes`: of their weights; `activation_bytes`: of a sample for the backward pass, in single precision,
    when nothing is computed again.
    """

    names: tuple[str, ...]
    flops: tuple[float, ...]
    moved_bytes: tuple[float, ...]
    weight_bytes: tuple[float, ...]
    activation_bytes: tuple[float, ...]

    def kind(self, place: int) -> tuple[float, ...]:
        """Blocks of one kind do the same work, so their seconds tell devices apart."""
        return self.flops[place], self.moved_bytes[place], self.weight_bytes[place]

    def max_bytes(self, place: int, samples: int) -> float:
        """The most that a block adds to a device that holds so many samples under way."""
        return STATES * self.weight_bytes[place] + samples * self.activation_bytes[place]

    def describe(self, places: range) -> str:
        """Blocks in a row."""
        first, last = self.names[places.start], self.names[places.stop - 1]
        return first if len(places) == 1 else f"{first} to {last}"


def ranges_of(layers: Sequence[int]) -> tuple[range, ...]:
    """The places of each stage, of how many blocks each has."""
    return tuple(range(first, stop) for first, stop in pairwise(accumulate(layers, initial=0)))
