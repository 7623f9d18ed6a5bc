"""Walks bound the least latency of every pipeline of small instances, and labels meet it."""

from dataclasses import replace
from itertools import combinations

import numpy as np

from tests.support.placement.search_cases import falling_value, random_instance
from torchsplit_core.placement.latency.choices import Choices
from torchsplit_core.placement.latency.path_latency import PathMinLatency
from torchsplit_core.placement.latency.pipeline_plan import PassCosts, evaluate_plan
from torchsplit_core.placement.latency.walk_search import min_walk_latency
from torchsplit_core.placement.latency.walks import WalkSweeps, priced_bound, walk_patterns
from torchsplit_core.placement.model.instance import ProblemInstance
from torchsplit_core.placement.search.clock import SearchClock
from torchsplit_core.placement.search.network import components
from torchsplit_core.placement.search.segment_table import SegmentTable, build_table

COSTS = PassCosts(1000.0, 1.0)


def least_of_all(instance: ProblemInstance, threshold: float) -> float:
    """The least seconds of a pass of the pipelines whose every segment and link reaches the threshold."""
    gpus = range(len(instance.kinds))
    sets = [chosen for size in range(1, instance.max_gpus + 1) for chosen in combinations(gpus, size)]
    least = np.inf

    def extend(left: int, last: tuple[int, ...], used: frozenset[int], seconds: float) -> None:
        nonlocal least
        if seconds >= least:
            return
        if not left:
            least = seconds
            return
        for chosen in sets:
            if used & set(chosen):
                continue
            hop_s = 0.0
            if last:
                link = min(float(instance.links[i, j]) for i in last for j in chosen)
                if link < threshold or link <= 0:
                    continue
                hop_s = 1000.0 / link
            for count in range(1, left + 1):
                value = instance.value(tuple(sorted(instance.kinds[gpu] for gpu in chosen)), count)
                if value >= threshold and value > 0:
                    extend(left - count, chosen, used | set(chosen), seconds + hop_s + 1000.0 / value)

    extend(instance.layers, (), frozenset(), 0.0)
    return float(least)


def nodes_of(seed: int) -> ProblemInstance:
    """Five layers on three nodes of two GPUs that hold one or two; links between nodes are drawn."""
    draw = np.random.default_rng(seed)
    node = np.arange(6) // 2
    kinds = tuple(int(kind) for kind in draw.integers(2, 5, 3)[node])
    links = np.where(node[:, None] == node, 600.0, draw.lognormal(4.4, 0.5, (6, 6)))
    return ProblemInstance(5, kinds, links, 2, falling_value(16, 9.0, 0.1))


def table_of(instance: ProblemInstance) -> SegmentTable:
    table = build_table(instance, SearchClock.start(60))
    assert table is not None
    return table


def searched(
    instance: ProblemInstance, threshold: float, labels: list[np.ndarray], beaten_s: float = np.inf
) -> float:
    """The least latency by walks in every component; each result is checked against its own plan."""
    table, clock = table_of(instance), SearchClock.start(60)
    least, choices = np.inf, Choices(table, COSTS).at(threshold)
    for component in components(instance.links, np.arange(len(instance.kinds)), threshold):
        minimum = min_walk_latency(
            instance, COSTS, table, choices, component, threshold, labels, beaten_s, clock
        )
        assert isinstance(minimum, PathMinLatency)
        if minimum.segments:
            plan = evaluate_plan(instance, COSTS, minimum.segments)
            assert plan is not None and plan.throughput >= threshold
            assert minimum.bound_s <= plan.latency_s <= minimum.bound_s * (1 + 1e-6)
            least = min(least, plan.latency_s)
        else:
            assert minimum.bound_s >= beaten_s * (1 - 1e-6)
    return least


def test_labels_end_at_the_least_latency_of_all_pipelines():
    met = 0
    for seed in range(60):
        instance = random_instance(seed) if seed % 2 else nodes_of(seed)
        instance = replace(instance, layers=min(instance.layers, 4))
        whole = np.zeros(len(instance.kinds), dtype=np.int64)
        for threshold in (1e-9, 60.0):
            exact = least_of_all(instance, threshold)
            for labels in ([], [whole], [np.arange(len(whole)) // 2, whole]):
                found_s = searched(instance, threshold, labels)
                assert found_s == exact or abs(found_s - exact) <= 1e-6 * exact, (seed, threshold, labels)
            if np.isfinite(exact):
                # Below the least latency there is none.
                assert searched(instance, threshold, [whole], exact) >= exact * (1 - 1e-6)
                met += 1
    assert met > 40


def test_no_price_bounds_the_walks_above_a_pipeline():
    tight = 0
    for seed in range(20):
        instance = nodes_of(seed)
        table, exact = table_of(instance), least_of_all(instance, 1e-9)
        seconds = COSTS.segment_s(table.values)
        homes = ((0, 1), (2, 3), (4, 5))
        patterns = walk_patterns(instance, COSTS, table, seconds, homes, 1e-9, homes)
        assert patterns is not None
        sweeps = WalkSweeps(patterns, instance.layers)
        plain_s = priced_bound(sweeps, np.zeros(3), exact, 1, SearchClock.start(60)).bound_s
        draw = np.random.default_rng(seed)
        for prices in (np.zeros(3), draw.uniform(0, 5, 3), draw.uniform(0, 50, 3)):
            bound = priced_bound(sweeps, prices, exact, 30, SearchClock.start(60))
            assert bound.bound_s <= exact * (1 + 1e-9) or np.isinf(exact), seed
            # The forward and the backward sweep are the same walks.
            least = sweeps.forward(bound.prices)[0] + sweeps.backward(bound.prices)
            if np.isfinite(least).any():
                whole = float(sweeps.forward(bound.prices)[0][-1].min())
                assert abs(float(least.min()) - whole) <= 1e-9 * whole
        better_s = priced_bound(sweeps, np.zeros(3), exact, 30, SearchClock.start(60)).bound_s
        assert better_s >= plain_s
        tight += np.isfinite(exact) and better_s > 0.9 * exact
    assert tight > 10
