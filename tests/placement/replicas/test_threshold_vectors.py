"""Joint programs and vectors of thresholds against all sets of disjoint pipelines of small instances."""

from itertools import product

import numpy as np
import pytest

from tests.support.placement.replicas_oracle import best_by_set, best_sum
from tests.support.placement.search_cases import falling_value
from torchsplit_core.placement.model.instance import ProblemInstance
from torchsplit_core.placement.replicas import search_pipelines
from torchsplit_core.placement.replicas.joint_program import JointProgram, ThresholdGraphs, packings_fit
from torchsplit_core.placement.replicas.pipelines import sum_and_order
from torchsplit_core.placement.replicas.threshold_vectors import ThresholdVectors, most_pipelines
from torchsplit_core.placement.search.clock import SearchClock
from torchsplit_core.placement.search.layer_assignment import pipeline_throughput
from torchsplit_core.placement.search.segment_table import build_table
from torchsplit_core.solver.highs import INF
from torchsplit_core.solver.row_program import RowProgram


def scarce_instance(seed: int) -> ProblemInstance:
    """Three layers on six GPUs that hold one or two of them; every link is drawn, in each direction, or two tiers."""
    draw = np.random.default_rng(seed)
    kinds = tuple(int(kind) for kind in draw.integers(3, 5, 6))
    links = draw.uniform(0, 600, (6, 6))
    if seed % 3 == 0:
        # GPUs of one node and kind are alike: classes of several GPUs.
        links = np.where(np.add.outer(np.arange(6) // 3, np.arange(6) // 3) % 2 == 0, 600.0, 200.0)
    return ProblemInstance(3, kinds, links, 2, falling_value(16, 9.0, 0.1))


def graphs_of(instance: ProblemInstance) -> ThresholdGraphs:
    clock = SearchClock.start(60)
    table = build_table(instance, clock)
    assert table is not None
    return ThresholdGraphs(instance, table, clock)


def test_a_joint_program_has_pipelines_exactly_where_a_set_of_them_reaches_its_thresholds():
    verdicts = set()
    for seed in range(6):
        instance = scarce_instance(seed)
        graphs, best = graphs_of(instance), best_by_set(instance)
        values = np.unique([*best.values(), *(1.1 * value for value in best.values())])
        chosen = values[np.linspace(0, len(values) - 1, 4).astype(int)].tolist() if len(values) else []
        for high, low in product(chosen, chosen):
            exists = any(
                first >= high and second >= low and not used & other
                for used, first in best.items()
                for other, second in best.items()
            )
            if high < low:
                continue
            status, pipelines = JointProgram(graphs, (high, low), 2).solve(graphs.clock)
            assert status == ("found" if exists else "none"), (seed, high, low)
            verdicts.add(status)
            if exists:
                assert packings_fit(graphs, (high, low), 10.0)
                sum_and_order(instance, pipelines)
                reached = [pipeline_throughput(instance, pipeline) for pipeline in pipelines]
                assert reached[0] >= high and reached[1] >= low
            if JointProgram(graphs, (high, low), 2).refuted(graphs.clock):
                assert not exists
    assert verdicts == {"found", "none"}


def test_vectors_of_thresholds_end_at_the_best_sum_and_bound_it_on_the_way():
    several = 0
    for seed in range(6):
        instance = scarce_instance(seed)
        graphs, exact = graphs_of(instance), best_sum(instance, 6)
        count = most_pipelines(graphs, 6)
        assert count is not None
        assert best_sum(instance, count) == exact
        vectors = ThresholdVectors(graphs, max(best_by_set(instance).values(), default=1.0), count)
        vectors.refute_by_packings(0.5 * exact, graphs.clock)
        value, bound = 0.0, vectors.bound()
        while vectors.bound() > value * (1 + 1e-9):
            for pipelines in vectors.step(value, graphs.clock):
                value = max(value, sum_and_order(instance, pipelines)[0])
            assert exact * (1 - 1e-9) <= max(vectors.bound(), value) <= max(bound, value)
            bound = vectors.bound()
        assert abs(value - exact) <= 1e-9 * exact, seed
        several += count > 1 and exact > 0
    assert several > 2


@pytest.mark.repeated
def test_large_fleets_are_proven_by_vectors_where_few_pipelines_fit():
    for seed in (1, 5):
        instance = scarce_instance(seed)
        found = search_pipelines(
            instance, 6, time_limit_s=30, progress=lambda value, bound: None, lattice_pairs=0
        )
        assert found.proven
        assert abs(found.value - best_sum(instance, 6)) <= 1e-9 * found.value


def test_a_relaxation_with_rows_added_since_is_that_of_the_whole_program():
    draw = np.random.default_rng(0)
    program = RowProgram()
    program.add_columns(draw.uniform(1, 2, 8).tolist(), [5.0] * 8)
    for _ in range(12):
        # Repeated columns are summed.
        program.add_row(float(draw.uniform(1, 9)), INF, draw.integers(0, 8, 5), draw.uniform(0.1, 2, 5))
        again, anew = program.relax_again(10.0), program.solve(10.0, integer=False)
        assert again.status == anew.status == "optimal"
        assert abs(again.bound - anew.bound) <= 1e-6 * anew.bound
    program.add_row(1000.0, INF, [0, 0], [1.0, 1.0])
    assert program.relax_again(10.0).status == program.solve(10.0, integer=False).status == "infeasible"
