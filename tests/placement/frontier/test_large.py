"""Programs and walks at a threshold against the exact sweep; curves of larger fleets; what little time gives."""

from dataclasses import replace

import numpy as np
import pytest

from tests.support.placement.requests import tiny
from tests.support.placement.search_cases import MEMORY_GIB, falling_value, linear_value, random_instance
from torchsplit_core.placement import place
from torchsplit_core.placement.frontier import frontier
from torchsplit_core.placement.frontier.curve_search import trace_frontier
from torchsplit_core.placement.latency.dynamic_program import build_dynamic_program
from torchsplit_core.placement.latency.pipeline_plan import PROVEN, MinLatency, PassCosts
from torchsplit_core.placement.latency.programs import LatencyPrograms
from torchsplit_core.placement.latency.topology import build_tiers, domain_classes_at
from torchsplit_core.placement.model.instance import ProblemInstance
from torchsplit_core.placement.search.clock import SearchClock
from torchsplit_core.placement.search.segment_table import build_table, candidate_values

pytestmark = pytest.mark.slow

COSTS = PassCosts(1000.0, 1.0)


def nodes(count: int, per_node: int, layers: int, most: int, *, full: float = 0.3) -> ProblemInstance:
    """Nodes of alike GPUs, three types in turn; fast links inside, slower ones in pairs of nodes and beyond.

    full: the share of all memory that the weights take.
    """
    node = np.arange(count) // per_node
    kinds = tuple(int(one) % 3 for one in node)
    links = np.where(node[:, None] // 2 == node // 2, 250.0, 60.0)
    links = np.where(node[:, None] == node, 900.0, links)
    layer_gib = sum(MEMORY_GIB[kind] for kind in kinds) * full / layers
    return ProblemInstance(layers, kinds, links, most, falling_value(64, layer_gib, 0.05))


def both(instance: ProblemInstance, share: float) -> tuple[MinLatency, MinLatency]:
    """The exact sweep's and the programs' answer at the candidate threshold so far up."""
    table = build_table(instance, SearchClock.start(60))
    sweep = build_dynamic_program(instance, COSTS)
    assert table is not None and sweep is not None
    values = candidate_values(instance, table)
    threshold = float(values[int(share * (len(values) - 1))])
    programs = LatencyPrograms(instance, COSTS, table, SearchClock.start(60))
    return sweep.min_latency(threshold), programs.min_latency(threshold)


def test_no_program_claims_more_than_the_exact_sweep():
    proven = plans = 0
    for seed in range(60):
        instance = random_instance(seed)
        table = build_table(instance, SearchClock.start(60))
        assert table is not None
        if not len(candidate_values(instance, table)):
            continue
        exact, found = both(instance, seed % 7 / 7)
        if exact.plan is None:
            assert found.plan is None
            continue
        plans += 1
        assert found.bound_s <= exact.plan.latency_s * (1 + PROVEN)
        assert found.plan is not None and found.plan.latency_s >= exact.plan.latency_s * (1 - 1e-9)
        proven += found.proven
    # Nearly all; arbitrary links leave some.
    assert plans > 30 and proven > 0.8 * plans


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6])
def test_in_nested_tiers_the_programs_are_exact(share):
    exact, found = both(nodes(12, 3, 12, 2), share)
    assert exact.proven and found.proven
    if exact.plan is not None and found.plan is not None:
        assert found.plan.latency_s == pytest.approx(exact.plan.latency_s, rel=PROVEN)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
@pytest.mark.parametrize("seed", [1, 2])
def test_over_arbitrary_links_trails_prove_segments_of_one_gpu(seed, share):
    draw = np.random.default_rng(seed)
    kinds = tuple(int(kind) for kind in draw.integers(0, 3, 8))
    value = (falling_value(16, 12.0, 0.05), linear_value(16, 2048, 12.0, 0.05))[seed % 2]
    instance = ProblemInstance(14, kinds, draw.uniform(0, 400, (8, 8)), 1, value)
    exact, found = both(instance, share)
    assert found.proven and (found.plan is None) == (exact.plan is None)
    if exact.plan is not None and found.plan is not None:
        assert found.plan.latency_s == pytest.approx(exact.plan.latency_s, rel=PROVEN)


def test_curves_by_programs_alone_are_those_of_the_exact_sweep(monkeypatch):
    seeds = [seed for seed in range(50) if len(random_instance(seed).kinds) > 2]
    expected = {seed: trace_frontier(random_instance(seed), COSTS, time_limit_s=60.0) for seed in seeds}
    monkeypatch.setattr(
        "torchsplit_core.placement.frontier.curve_search.build_dynamic_program", lambda *_: None
    )
    several = 0
    for seed, exact in expected.items():
        traced = trace_frontier(random_instance(seed), COSTS, time_limit_s=60.0)
        assert exact.complete and traced.complete
        assert [one.plan.throughput for one in traced.points] == [one.plan.throughput for one in exact.points]
        for one, wanted in zip(traced.points, exact.points, strict=True):
            assert one.plan.latency_s == pytest.approx(wanted.plan.latency_s, rel=PROVEN)
        several += len(exact.points) > 1
    assert several >= 3


def test_where_links_inside_nodes_are_the_slow_ones_walks_meet_the_bound():
    node = np.arange(24) // 4
    links = np.where(node[:, None] == node, 20.0, 100.0)
    instance = ProblemInstance(40, (2,) * 24, links, 2, falling_value(16, 10.0, 0.05))
    traced = trace_frontier(instance, COSTS, time_limit_s=60.0)
    assert traced.complete and traced.statistics["walks"] > 0


def test_tiers_hold_components_within_components_and_count_what_is_alike():
    instance = nodes(12, 3, 12, 2)
    tiers = build_tiers(instance.links)
    assert (tiers.levels, tiers.below, tiers.fastest) == ((900.0, 250.0, 60.0), (250.0, 60.0, 0.0), 900.0)
    kinds = np.array(instance.kinds)
    (root,), levels = domain_classes_at(tiers, instance.links, kinds, 50.0)
    assert levels == (0, 1) and len(root.domains[0].gpus) == 12
    # Nodes of the kinds 0 1 2 0 in two pairs: neither the pairs are alike nor the nodes in one.
    assert [(len(pair.domains), pair.count, len(pair.parts)) for pair in root.parts] == [(1, 1, 2), (1, 1, 2)]
    alike, _ = domain_classes_at(tiers, instance.links, np.zeros(12, dtype=np.int64), 100.0)
    assert [(len(pair.domains), pair.count) for pair in alike] == [(2, 2)]
    assert [(len(node.domains), node.count) for node in alike[0].parts] == [(4, 2)]


def test_a_curve_of_many_gpus_in_nodes_is_proven_and_keeps_its_ends():
    instance = nodes(36, 6, 48, 3, full=0.1)
    traced = trace_frontier(instance, COSTS, time_limit_s=60.0)
    assert traced.complete and traced.top_proven and len(traced.points) > 2
    assert traced.points[-1].plan.throughput == traced.throughput_bound
    assert traced.statistics["programs"] > 0
    for low, high in zip(traced.points, traced.points[1:], strict=False):
        assert low.plan.throughput < high.plan.throughput and low.plan.latency_s < high.plan.latency_s


def test_every_point_over_arbitrary_links_has_a_bound():
    draw = np.random.default_rng(3)
    gpus = 24
    instance = ProblemInstance(
        20, tuple(int(kind) for kind in draw.integers(0, 5, gpus)), draw.uniform(0, 400, (gpus, gpus)), 1,
        falling_value(64, sum(MEMORY_GIB) / 5 * 0.25 * gpus / 20, 0.05),
    )  # fmt: skip
    traced = trace_frontier(instance, COSTS, time_limit_s=2.5)
    assert traced.points
    assert all(0 < point.bound_s <= point.plan.latency_s for point in traced.points)
    bounds = [point.bound_s for point in traced.points]
    assert bounds == sorted(bounds)


def test_little_time_is_no_proof_that_there_is_nothing():
    instance = nodes(36, 6, 48, 3, full=0.1)
    traced = trace_frontier(instance, COSTS, time_limit_s=1e-6)
    assert not traced.top_proven and not traced.complete
    request = tiny(4, model=replace(tiny().model, layers=200, layer_weight_gib=0.2))
    request = replace(request, solver=replace(request.solver, time_limit_s=1e-6))
    curve = frontier(request)
    assert curve.status in ("timeout", "feasible") and curve.message and not curve.complete


def test_the_last_point_has_the_throughput_of_the_best_placement():
    request = tiny(2, model=replace(tiny().model, layers=6, layer_weight_gib=14.0), max_replicas=2)
    curve = frontier(request)
    alone = place(replace(request, max_replicas=1))
    assert curve.points[-1].throughput == alone.throughput == curve.throughput_bound
