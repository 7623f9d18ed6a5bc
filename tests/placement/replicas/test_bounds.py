"""Bounds of large fleets: never below the exact sum, whatever they are made of."""

from itertools import pairwise

import numpy as np
import pytest

from tests.support.placement.replicas_oracle import best_by_set, best_sum, small_instance
from tests.support.placement.search_cases import falling_value
from torchsplit_core.placement.model.instance import ProblemInstance
from torchsplit_core.placement.model.symmetry_classes import symmetry_classes
from torchsplit_core.placement.replicas import search_pipelines
from torchsplit_core.placement.replicas.capacity_bound import capacity_bound
from torchsplit_core.placement.replicas.fast_links import FastLinkComponents, find_link_level
from torchsplit_core.placement.replicas.partition_lattice import PartitionLattice
from torchsplit_core.placement.replicas.pipelines import sum_and_order
from torchsplit_core.placement.replicas.upper_bounds import upper_bounds
from torchsplit_core.placement.search import search_thresholds
from torchsplit_core.placement.search.clock import SearchClock
from torchsplit_core.placement.search.segment_table import build_table


def in_nodes(kinds: tuple[int, ...], per_node: int, inside: float, across: float) -> ProblemInstance:
    """Nodes of equal GPUs, 12 layers, at most two GPUs a segment."""
    node = np.arange(len(kinds) * per_node) // per_node
    links = np.where(node[:, None] == node, inside, across)
    every = tuple(kind for kind in kinds for _ in range(per_node))
    return ProblemInstance(12, every, links, 2, falling_value(16, 6.0, 0.1))


def test_no_capacity_is_below_the_best_sum():
    for seed in range(40):
        instance, clock = small_instance(seed), SearchClock.start(60)
        best = max(best_by_set(instance).values(), default=0.0)
        table = build_table(instance, clock)
        assert table is not None
        for most in (1, 2, 9):
            limit = capacity_bound(instance, table, most, best, clock)
            assert limit.bound >= best_sum(instance, most) * (1 - 1e-9), (seed, most)
            assert limit.bound <= most * best * (1 + 1e-9)


def test_no_upper_bound_is_below_the_best_pipeline_of_its_gpus():
    for seed in range(40):
        instance, clock = small_instance(seed), SearchClock.start(60)
        found = best_by_set(instance)
        table, classes = build_table(instance, clock), symmetry_classes(instance, 10_000)
        assert table is not None and classes is not None
        lattice = PartitionLattice(classes)
        top = upper_bounds(instance, table, classes, lattice.vectors, max(found.values(), default=0.0), clock)
        for used, value in found.items():
            vector = np.array([sum(used >> gpu & 1 for gpu in members) for members in classes.members])
            assert top[lattice.index(vector)] >= value, (seed, used)


@pytest.mark.parametrize(
    ("kinds", "across"), [((0, 0, 0), 40.0), ((0, 1, 4), 60.0), ((0, 1, 1), 20.0), ((2, 4), 90.0)]
)
def test_fast_link_components_keep_the_exact_sum_between_floor_and_bound(kinds, across):
    instance, clock = in_nodes(kinds, 4, 900.0, across), SearchClock.start(60)
    table = build_table(instance, clock)
    assert table is not None
    single = search_thresholds(instance, time_limit_s=60)
    # As if only a node were small enough: pipelines across nodes are then bounded by prices alone.
    level = across if across < single.value else 0.9 * single.value
    for most in (1, 2, 4):
        exact = search_pipelines(instance, most, time_limit_s=60, progress=lambda value, bound: None)
        assert exact.proven
        fast = FastLinkComponents(instance, table, level, most, single.value, clock)
        bounds = []
        while True:
            bound, unknown = fast.bound()
            bounds.append(bound)
            assert bound >= exact.value * (1 - 1e-9)
            assert sum_and_order(instance, fast.best_known())[0] <= exact.value * (1 + 1e-9)
            if not unknown:
                break
            for divider, places in unknown:
                divider.resolve(places)
        assert all(after <= before * (1 + 1e-9) for before, after in pairwise(bounds))


def test_the_level_of_fast_links_is_a_link_between_them():
    # Arbitrary links between two halves tell all GPUs apart; above them, those of a half are alike.
    links = np.random.default_rng(0).uniform(1.0, 2.0, (40, 40))
    links[:20, :20] = links[20:, 20:] = 900.0
    halves = ProblemInstance(12, (0,) * 40, links, 1, falling_value(16, 6.0, 0.1))
    table = build_table(halves, SearchClock.start(60))
    assert table is not None
    level = find_link_level(halves, table, 500.0)
    assert level is not None and 1.0 < level < 2.0
    assert level == max(float(links[:20, 20:].max()), float(links[20:, :20].max()))


def test_gpus_that_can_take_part_in_no_pipeline_are_worth_nothing():
    # Four GPUs hold the layers at 100; four of another kind, linked at 1 to all, add no more than that.
    links = np.full((8, 8), 1.0)
    links[:4, :4] = 1000.0
    kinds = (0,) * 4 + (1,) * 4
    instance = ProblemInstance(4, kinds, links, 1, lambda kind, count: 100.0 if count == 1 else 0.0)
    clock = SearchClock.start(60)
    table = build_table(instance, clock)
    assert table is not None
    assert capacity_bound(instance, table, 8, 100.0, clock).bound == pytest.approx(101.0)
