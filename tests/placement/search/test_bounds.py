"""What the search says beside the optimum: bounds, time, starts; and pipelines longer than a look at all allows."""

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from tests.support.placement.search_cases import (
    falling_value,
    jagged_value,
    linear_value,
    random_instance,
    worth_of,
)
from tests.support.seeds import repeated
from torchsplit_core.placement.model.instance import ProblemInstance, SearchResult
from torchsplit_core.placement.search import search_thresholds

pytestmark = pytest.mark.slow


def _two_nodes(bridge: float) -> ProblemInstance:
    """Two nodes of four equal GPUs; only GPUs 3 and 4 are linked across, one way."""
    links = np.zeros((8, 8))
    links[:4, :4] = links[4:, 4:] = 500.0
    links[3, 4] = bridge
    return ProblemInstance(8, (0,) * 8, links, 2, lambda kinds, count: 100.0 if count == 1 else 0.0)


def _arbitrary(seed: int, gpus: int, layers: int, most: int) -> ProblemInstance:
    draw = np.random.default_rng(seed)
    kinds = tuple(int(kind) for kind in draw.integers(0, 5, gpus))
    return ProblemInstance(
        layers, kinds, draw.uniform(0, 400, (gpus, gpus)), most, falling_value(64, 3.0, 0.05)
    )


def best_single(instance: ProblemInstance) -> float:
    """The optimum with one GPU a segment, over (GPUs used, last GPU, layers left)."""
    gpus = range(len(instance.kinds))

    @cache
    def best(used, last, left):
        if left == 0:
            return float("inf")
        value = 0.0
        for gpu in gpus:
            if used >> gpu & 1:
                continue
            link = float(instance.links[last, gpu]) if last >= 0 else float("inf")
            for count in range(1, left + 1):
                least = min(link, instance.value((instance.kinds[gpu],), count))
                if least > value:
                    value = max(value, min(least, best(used | 1 << gpu, gpu, left - count)))
        return value

    return best(0, -1, instance.layers)


@pytest.mark.parametrize("seed", range(6))
def test_long_pipelines_of_single_gpus(seed):
    draw = np.random.default_rng(seed)
    kinds = tuple(int(kind) for kind in draw.integers(0, 3, 8))
    links = draw.uniform(0, 300, (8, 8))
    values = (falling_value(16, 12.0, 0.1), linear_value(16, 2048, 20.0, 0.1), jagged_value(seed))
    instance = ProblemInstance(
        8, kinds, np.minimum(links, links.T) if seed % 2 else links, 1, values[seed % 3]
    )
    thresholds = search_thresholds(instance, time_limit_s=60)
    assert thresholds.proven
    assert thresholds.value == best_single(instance)


def test_a_pipeline_passes_a_bridge_once_and_in_its_direction():
    thresholds = search_thresholds(_two_nodes(50.0), time_limit_s=60)
    assert (thresholds.value, thresholds.proven) == (50.0, True)
    assert [gpus for _, gpus in thresholds.segments][3:5] == [(3,), (4,)]
    assert len(thresholds.segments) == 8


def test_nodes_that_are_slow_inside_are_joined_across():
    node = np.arange(96) // 8
    links = np.where(node[:, None] == node, 5.0, 80.0)
    instance = ProblemInstance(40, (0,) * 48 + (4,) * 48, links, 3, falling_value(64, 6.0, 0.05))
    thresholds = search_thresholds(instance, time_limit_s=60)
    free = search_thresholds(replace(instance, links=np.full((96, 96), 1e6)), time_limit_s=60)
    assert (thresholds.value, thresholds.proven, thresholds.statistics["fewest_proven"]) == (80.0, True, 1)
    assert free.value > 80.0
    assert worth_of(instance, thresholds.segments) == 80.0
    assert all(
        not set(node[list(left)]) & set(node[list(right)])
        for (_, left), (_, right) in pairwise(thresholds.segments)
    )


def test_no_pipeline_is_proven_with_bound_0():
    thresholds = search_thresholds(_two_nodes(0.0), time_limit_s=60)
    assert thresholds.segments == ()
    assert (thresholds.value, thresholds.bound, thresholds.proven) == (0.0, 0.0, True)


def test_links_above_every_throughput_do_not_bind():
    thresholds = search_thresholds(_two_nodes(1e6), time_limit_s=60)
    assert thresholds.value == 100.0


def test_no_time_is_not_infeasible():
    for instance in (_two_nodes(50.0), _arbitrary(0, 30, 40, 3)):
        thresholds = search_thresholds(instance, time_limit_s=0.0)
        assert not thresholds.proven
        assert thresholds.segments == ()
        assert thresholds.bound >= search_thresholds(instance, time_limit_s=60).value > 0


@repeated("most", (1, 3))
def test_a_short_time_gives_a_plan_within_a_certified_bound(most):
    instance = _arbitrary(1, 40, 40, most)
    full = search_thresholds(instance, time_limit_s=60)
    assert full.proven
    for seconds in (0.05, 0.2, 0.8):
        thresholds = search_thresholds(instance, time_limit_s=seconds)
        assert thresholds.value <= full.value <= thresholds.bound
        assert not thresholds.segments or worth_of(instance, thresholds.segments) == thresholds.value
        assert not thresholds.proven or thresholds.value == full.value


def test_progress_only_improves():
    told = []
    thresholds = search_thresholds(
        _arbitrary(2, 30, 40, 2), time_limit_s=60, progress=lambda value, bound: told.append((value, bound))
    )
    values, bounds = zip(*told, strict=True)
    assert list(values) == sorted(values)
    assert list(bounds) == sorted(bounds, reverse=True)
    assert told[-1] == (thresholds.value, thresholds.bound)


def test_the_same_instance_gives_the_same_pipeline():
    instance = _arbitrary(3, 30, 40, 2)
    first, again = search_thresholds(instance, time_limit_s=60), search_thresholds(instance, time_limit_s=60)
    assert first.segments == again.segments


def test_a_start_changes_nothing_but_the_way():
    for seed in range(40):
        instance = random_instance(seed)
        before = search_thresholds(instance, time_limit_s=60)
        links = instance.links * np.random.default_rng(seed).choice([0.5, 1.0, 2.0], instance.links.shape)
        changed = replace(instance, links=links)
        plain, warm = (
            search_thresholds(changed, time_limit_s=60),
            search_thresholds(changed, time_limit_s=60, warm_start=before),
        )
        assert (plain.value, plain.segments) == (warm.value, warm.segments), seed


def test_a_start_of_another_fleet_is_not_believed():
    strange = SearchResult(1e9, 1e9, True, ((8, (40,)),), {})
    twice = SearchResult(1e9, 1e9, True, ((4, (0,)), (4, (0,))), {})
    for start in (strange, twice):
        assert search_thresholds(_two_nodes(50.0), time_limit_s=60, warm_start=start).value == 50.0
