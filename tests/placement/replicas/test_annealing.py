"""Annealing finds disjoint pipelines of given thresholds, and packings refute whole levels of them."""

from itertools import product

import numpy as np
import pytest

from tests.placement.replicas.test_threshold_vectors import graphs_of, scarce_instance
from tests.support.placement.replicas_oracle import best_by_set
from tests.support.placement.search_cases import falling_value
from torchsplit_core.placement.model.instance import ProblemInstance, Segments
from torchsplit_core.placement.replicas.annealing import VectorAnnealing
from torchsplit_core.placement.replicas.joint_program import JointProgram, packings_fit
from torchsplit_core.placement.replicas.pipelines import sum_and_order
from torchsplit_core.placement.replicas.vector_packings import VectorPackings
from torchsplit_core.placement.search.clock import SearchClock
from torchsplit_core.placement.search.layer_assignment import pipeline_throughput


def annealed(
    instance: ProblemInstance, thresholds: list[float], moves: int, seed: int = 1
) -> tuple[bool, list[Segments]]:
    graphs = graphs_of(instance)
    shapes = JointProgram(graphs, thresholds, 0).packing(graphs.clock)
    if not shapes:
        return False, []
    return VectorAnnealing(instance, graphs.table, thresholds, shapes, seed).find(
        moves, SearchClock.start(60)
    )


def rings(seed: int) -> ProblemInstance:
    """24 GPUs whose fast links are two hidden paths through all of them; a GPU holds one of 12 layers."""
    draw = np.random.default_rng(seed)
    order = draw.permutation(24)
    links = draw.uniform(1, 50, (24, 24))
    for path in (order[:12], order[12:]):
        links[path[:-1], path[1:]] = 200.0
    # A few other fast links lead astray.
    links[draw.integers(0, 24, 30), draw.integers(0, 24, 30)] = 200.0
    return ProblemInstance(12, (2,) * 24, links, 1, falling_value(16, 60.0, 0.1))


@pytest.mark.repeated
def test_hidden_paths_are_found_and_the_same_ones_each_time():
    successes = 0
    for seed in range(4):
        instance = rings(seed)
        reached, pipelines = annealed(instance, [200.0, 200.0], 60_000)
        assert (reached, pipelines) == annealed(instance, [200.0, 200.0], 60_000)
        successes += reached
        if reached:
            total, ordered = sum_and_order(instance, pipelines)
            assert total == 400.0 and len(ordered) == 2
    assert successes >= 2


def test_what_annealing_reaches_is_so_and_what_no_set_reaches_is_never_reached():
    verdicts = set()
    for seed in range(6):
        instance = scarce_instance(seed)
        best = best_by_set(instance)
        values = sorted(set(best.values()))[:: max(1, len(set(best.values())) // 4)]
        for high, low in product([*values, 1.1 * values[-1]] if values else [], repeat=2):
            exists = any(
                first >= high and second >= low and not used & other
                for used, first in best.items()
                for other, second in best.items()
            )
            reached, pipelines = annealed(instance, [high, low], 3_000)
            assert exists or not reached
            if pipelines:
                sum_and_order(instance, pipelines)
            if reached:
                values_reached = [pipeline_throughput(instance, one) for one in pipelines]
                assert values_reached[0] >= high and values_reached[1] >= low
            verdicts.add((exists, reached))
    assert (True, True) in verdicts and (False, False) in verdicts


def test_vectors_are_refuted_by_packings_exactly_down_to_their_levels():
    refuted_vectors = 0
    for seed in range(6):
        graphs = graphs_of(scarce_instance(seed))
        packings = VectorPackings(graphs)
        values = np.unique(graphs.table.values)
        values = values[values > 0]
        draw = np.random.default_rng(seed)
        for _ in range(12):
            # Between segment values too, where links may be.
            vector = tuple(sorted(draw.uniform(0, 1.1 * values[-1], 3).tolist(), reverse=True))
            assert packings.fits(vector) == packings_fit(graphs, vector, 10.0)
            if packings.fits(vector):
                continue
            least = packings.least_refuted(vector)
            refuted_vectors += 1
            assert all(low <= high for low, high in zip(least, vector, strict=True))
            assert not packings_fit(graphs, [threshold for threshold in least if threshold], 10.0)
            for place, threshold in enumerate(least):
                lower = [*least[:place], packings.below(threshold), *least[place + 1 :]]
                if threshold:
                    assert packings.below(threshold) < threshold
                    assert packings_fit(graphs, [one for one in lower if one], 10.0)
    assert refuted_vectors > 10
