"""Several pipelines at once: equal to a look at all sets of them, with a bound where the fleet is large."""

import numpy as np
import pytest

from tests.support.placement.replicas_oracle import best_sum, small_instance
from tests.support.placement.search_cases import falling_value, worth_of
from tests.support.seeds import repeated
from torchsplit_core.placement.model.instance import ProblemInstance
from torchsplit_core.placement.replicas import PipelineSetResult, search_pipelines

pytestmark = pytest.mark.slow


def silent(value: float, bound: float) -> None:
    """No progress is looked at."""


def sound(instance: ProblemInstance, found: PipelineSetResult, most: int) -> None:
    """The pipelines are disjoint, no more than were asked for, in order, and worth what is said."""
    values = [worth_of(instance, pipeline) for pipeline in found.pipelines]
    gpus = [gpu for pipeline in found.pipelines for _, chosen in pipeline for gpu in chosen]
    assert len(gpus) == len(set(gpus))
    assert len(values) <= most and values == sorted(values, reverse=True)
    assert found.value == pytest.approx(sum(values), rel=1e-12)
    assert found.value <= found.bound


@repeated("part", range(6), kept=1)
def test_equals_a_look_at_all_sets(part):
    several = 0
    for seed in range(part * 35, part * 35 + 35):
        instance = small_instance(seed)
        for most in (2, 3, 9):
            best = best_sum(instance, most)
            search = search_pipelines(instance, most, time_limit_s=60, progress=silent)
            sound(instance, search, most)
            assert search.proven, (seed, most)
            assert search.value == pytest.approx(best, rel=1e-9), (seed, most)
            several += len(search.pipelines) > 1
    assert several > 10


@pytest.mark.parametrize("seed", range(0, 60, 4))
def test_the_way_of_large_fleets_keeps_within_its_bound(seed):
    instance = small_instance(seed)
    for most in (2, 9):
        best = best_sum(instance, most)
        search = search_pipelines(instance, most, time_limit_s=0.05, progress=silent, lattice_pairs=0)
        sound(instance, search, most)
        assert search.value <= best * (1 + 1e-9), (seed, most)
        assert search.bound >= best * (1 - 1e-9), (seed, most)


def in_nodes(
    kinds: tuple[int, ...], per_node: int, layers: int, inside: float, across: float
) -> ProblemInstance:
    node = np.arange(len(kinds) * per_node) // per_node
    links = np.where(node[:, None] == node, inside, across)
    every = tuple(kind for kind in kinds for _ in range(per_node))
    return ProblemInstance(layers, every, links, 2, falling_value(16, 6.0, 0.1))


def test_nodes_of_one_sort_are_divided_as_one_fleet():
    instance = in_nodes((0, 0, 0), 4, 24, 900.0, 40.0)
    exact = search_pipelines(instance, 12, time_limit_s=60, progress=silent)
    large = search_pipelines(instance, 12, time_limit_s=0.5, progress=silent, lattice_pairs=0)
    assert exact.proven
    sound(instance, exact, 12)
    sound(instance, large, 12)
    assert large.value <= exact.value * (1 + 1e-9)
    assert large.bound >= exact.value * (1 - 1e-9)
    assert len(exact.pipelines) > 1
    again = search_pipelines(instance, 12, time_limit_s=60, progress=silent)
    assert again.pipelines == exact.pipelines


def test_of_equal_sums_the_fewest_pipelines_are_taken():
    # Throughput per layer is the same everywhere: any division of the eight GPUs gives the same sum.
    links = np.full((8, 8), 1e9)
    instance = ProblemInstance(8, (0,) * 8, links, 1, lambda kinds, count: 80.0 / count)
    search = search_pipelines(instance, 8, time_limit_s=60, progress=silent)
    assert (search.value, search.proven, len(search.pipelines)) == (80.0, True, 1)


def test_more_pipelines_are_never_worse_and_one_is_the_single_best():
    instance = in_nodes((0, 1, 4), 3, 10, 500.0, 60.0)
    values = [
        search_pipelines(instance, most, time_limit_s=60, progress=silent).value for most in (1, 2, 3, 9)
    ]
    assert values == sorted(values)
    assert values[0] < values[-1]


def test_the_bound_of_many_pipelines_is_that_of_the_capacity():
    # One layer a GPU at 100: eight GPUs hold four layers twice, and no set of pipelines passes 200.
    links = np.full((8, 8), 1e9)
    instance = ProblemInstance(4, (0,) * 8, links, 1, lambda kinds, count: 100.0 if count == 1 else 0.0)
    search = search_pipelines(instance, 8, time_limit_s=5, progress=silent, lattice_pairs=0)
    assert (search.value, search.bound, search.proven) == (200.0, 200.0, True)


@pytest.mark.parametrize("pairs", (0, 10**6))
def test_no_time_is_not_infeasible(pairs):
    instance = in_nodes((0, 1, 4), 3, 10, 500.0, 60.0)
    search = search_pipelines(instance, 3, time_limit_s=1e-9, progress=silent, lattice_pairs=pairs)
    assert not search.proven
    assert search.bound >= search_pipelines(instance, 3, time_limit_s=60, progress=silent).value


@pytest.mark.parametrize("pairs", (0, 10**6))
def test_none_is_proven(pairs):
    instance = in_nodes((0, 1), 2, 60, 500.0, 0.0)
    search = search_pipelines(instance, 3, time_limit_s=60, progress=silent, lattice_pairs=pairs)
    assert (search.value, search.bound, search.proven, search.pipelines) == (0.0, 0.0, True, ())


@pytest.mark.parametrize("pairs", (0, 10**6))
def test_progress_only_improves_and_ends_with_what_is_found(pairs):
    told = []
    tell = lambda value, bound: told.append((value, bound))  # noqa: E731
    instance = in_nodes((0, 1, 4), 3, 10, 500.0, 60.0)
    search = search_pipelines(instance, 3, time_limit_s=1, progress=tell, lattice_pairs=pairs)
    values, bounds = zip(*told, strict=True)
    assert list(values) == sorted(values)
    assert list(bounds) == sorted(bounds, reverse=True)
    assert told[-1] == pytest.approx((search.value, search.bound))


def test_no_segment_at_all_is_proven_even_without_time():
    instance = ProblemInstance(3, (0,) * 4, np.full((4, 4), 9.0), 2, lambda kinds, count: 0.0)
    for seconds in (1e-9, 60.0):
        search = search_pipelines(instance, 2, time_limit_s=seconds, progress=silent, lattice_pairs=0)
        assert search.pipelines == () and search.value == 0.0
        assert search.bound == 0.0 or not search.proven
