"""Parts of patterns, as the linear program mixes them, taken apart into what can be counted in whole numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from torchsplit_core.planning.patterns.capacity import Counts, Vector
from torchsplit_core.planning.patterns.options import ModelOptions
from torchsplit_core.planning.patterns.pricing import Pattern, build_pattern

PART = 1e-6
"""Part of a pattern, or of a slice, from which on it belongs to a mixture."""

PatternPart = tuple[float, Pattern]
"""The part of a pattern in the linear program's solution."""


@dataclass(frozen=True)
class Mixture:
    """`amounts[i]` of what the mix holds, by index: slices, or GPUs of a co-located set, `most[i]` at most.

    `usage[i, pool]`: its slices. `shares[i, row]`: what one adds to each stage or member, in units of what is needed.
    `build` makes a pattern of whole amounts.
    """

    amounts: Vector
    most: Counts
    usage: Counts
    shares: Vector
    build: Callable[[Counts], Pattern]


def keep_pattern(pattern: Pattern) -> Mixture:
    """The one pattern, whole."""
    return Mixture(
        np.ones(1), np.ones(1, dtype=np.int64), pattern.usage[None], np.ones((1, 1)), lambda _: pattern
    )


def mix_slices(
    options: ModelOptions, most: Counts, parts: Sequence[PatternPart], need: float
) -> Mixture | None:
    """The slices of the option that most of the mix takes, for `need` requests/s; None if there are none.

    `most[pool]`: slices in a stage. Where the mix serves less than is needed it grows in proportion.
    """
    weights: dict[int, float] = {}
    for part, pattern in parts:
        weights[pattern.option] = weights.get(pattern.option, 0.0) + part
    number = max(weights, key=lambda option: weights[option])
    if number < 0:
        return None
    option = options.options[number]
    shares_of, stages_of = zip(
        *((part, pattern.stages) for part, pattern in parts if pattern.option == number), strict=True
    )
    mixed: Vector = np.tensordot(np.array(shares_of) / weights[number], np.array(stages_of), 1)
    stages, pools = np.nonzero((mixed > PART) & np.array([offer.rates > 0 for offer in option.stages]))
    amounts = mixed[stages, pools]
    shares = np.zeros((len(stages), len(option.stages)))
    for stage, offer in enumerate(option.stages):
        inside = stages == stage
        rates = offer.rates[pools[inside]]
        least = need
        if offer.least_after_loss_rps > 0:
            least = max(need, offer.least_after_loss_rps + float(rates.max(initial=0.0)))
        shares[inside, stage] = rates / least
        amounts[inside] *= max(1.0, least / max(float(rates @ amounts[inside]), 1e-12))

    def build(counts: Counts) -> Pattern:
        full = np.zeros(mixed.shape, dtype=np.int64)
        full[stages, pools] = counts
        return build_pattern(option, number, full)

    return Mixture(amounts, most[pools], np.eye(mixed.shape[1], dtype=np.int64)[pools], shares, build)
