"""A look at every pipeline across entries of a small fleet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, pairwise, permutations, product

from torchsplit_core.strategy.cost_model.estimate import USABLE
from torchsplit_core.strategy.search.hetero_pipeline.stage_configs import StageConfig, StageConfigs, StageRole
from torchsplit_core.strategy.search.homogeneous import HomogeneousSearch
from torchsplit_core.values.strategy.request import TransformerSizes

TIGHT = TransformerSizes(6, 4096, 32, 32, 16384, 32000, 512)
"""3.2 GB of states a layer: a T4 holds four, or fewer with the words, an A100 of 40 GB twelve."""


def divisions(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    """Every way to give each stage one layer or more."""
    for cuts in combinations(range(1, layers), stages - 1):
        ends = (0, *cuts, layers)
        yield tuple(high - low for low, high in pairwise(ends))


def every(searches: Sequence[HomogeneousSearch]) -> float:
    """The least step of every order of every set of entries, by every common choice and division of the layers."""
    space, least = searches[0].space, float("inf")
    batch, layers = space.job.global_batch, space.model.layers
    for sequences in (size for size in range(1, batch + 1) if batch % size == 0):
        configs = [list(StageConfigs(search, sequences).all()) for search in searches]
        for count in range(2, len(searches) + 1):
            for order in permutations(range(len(searches)), count):
                for chosen in product(*(configs[entry] for entry in order)):
                    if len({replace(config.choices, pipeline=1) for config in chosen}) == 1:
                        m = batch // sequences
                        least = min(least, least_of(chosen, m, layers) + searches[0].c.fixed_s)
    return least


def least_of(chosen: tuple[StageConfig, ...], m: int, layers: int) -> float:
    """Of these ways in this order."""
    whose = [(way, number) for way in chosen for number in range(way.choices.pipeline)]
    if len(whose) > layers:
        return float("inf")
    places = []
    for number, (way, own) in enumerate(whose):
        before = own == 0 and number > 0
        behind = own == way.choices.pipeline - 1 and number < len(whose) - 1
        places.append(StageRole(len(whose) - number, number == 0, number == len(whose) - 1, before or behind))
    least = float("inf")
    for division in divisions(layers, len(whose)):
        stages = [(way, own, place) for (way, _), own, place in zip(whose, division, places, strict=True)]
        if all(holds(way, own, place) for way, own, place in stages):
            times = [way.stage_s(own, place) for way, own, place in stages]
            after = max(sum(way.after_s(own, place)) for way, own, place in stages)
            least = min(least, (m - 1) * max(times) + sum(times) + after)
    return least


def holds(way: StageConfig, layers: int, place: StageRole) -> bool:
    machine = way.search.machine
    end = place.first or place.last
    return (
        way.memory(layers, place).total <= USABLE * machine.device.memory_bytes
        and way.host_bytes(layers, end) <= machine.host_bytes
    )
