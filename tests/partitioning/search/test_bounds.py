"""What the bounds promise, against every pipeline there is: windows, kernels, least cuts, and the whole search."""

import itertools
import random
import time
from dataclasses import replace

import numpy as np
import pytest

from tests.support.partitioning.cases import random_request
from tests.support.seeds import in_blocks, repeated
from torchsplit_core.partitioning import solve_partition, verify_outcome
from torchsplit_core.partitioning.blocks.block_graph import contract
from torchsplit_core.partitioning.blocks.topological_orders import topological_orders
from torchsplit_core.partitioning.candidates import fits_memory, stage_loads
from torchsplit_core.partitioning.search.cut_windows import CutBounds
from torchsplit_core.partitioning.search.ideal_dp import best_ideal_cuts
from torchsplit_core.partitioning.search.kernel import chain_order, kernelize
from torchsplit_core.partitioning.search.min_cuts import CutNetwork
from torchsplit_core.partitioning.search.neighbourhood_search import (
    improve,
    minimize_max_load,
    parametric_cuts,
)
from torchsplit_core.partitioning.search.prefix_dp import best_prefix_cuts
from torchsplit_core.values import GraphEdge, PartitionDevices, PartitionNode, PartitionRequest, SolverOptions

pytestmark = pytest.mark.slow


def pipelines(graph):
    """Every chain of stages, empty ones included, that fits the memory, with its largest load."""
    n, k = len(graph.blocks), graph.request.devices.count
    for choice in itertools.product(range(k), repeat=n):
        if all(choice[a] <= choice[b] for a, b in graph.edges):
            parts = tuple(tuple(b for b in range(n) if choice[b] == d) for d in range(k))
            if fits_memory(graph, parts):
                yield max(stage_loads(graph, parts)), choice


def ideals(graph):
    n = len(graph.blocks)
    for bits in itertools.product((False, True), repeat=n):
        if all(bits[a] or not bits[b] for a, b in graph.edges):
            yield np.array(bits)


def wider(seed, count=4):
    """Up to 14 nodes in a few layers, more devices, transfers that matter."""
    rng = random.Random(seed)
    n = rng.randint(9, 14)
    nodes = tuple(
        PartitionNode(
            f"v{i}", rng.choice((0.0, 1.0, rng.random() * 4)), rng.randint(0, 4), rng.randint(0, 900_000)
        )
        for i in range(n)
    )
    edges = tuple(
        GraphEdge(f"v{i}", f"v{j}")
        for i in range(n)
        for j in range(i + 1, min(n, i + 5))
        if rng.random() < 0.45
    )
    memory = rng.choice((None, sum(node.memory_bytes for node in nodes) // 2))
    return PartitionRequest(nodes, edges, PartitionDevices(count, memory, 1.0), solver=SolverOptions(20.0))


def skipping(seed):
    """A chain of six or seven nodes that sends little, with values of two early nodes that many late ones read."""
    rng = random.Random(seed)
    n, count = (6, 4) if seed % 2 else (7, 3)
    nodes = tuple(
        PartitionNode(
            f"v{i}", rng.choice((0.5, 1.0, 2.0)), 1, rng.choice((0, 0, 200_000, 1_500_000, 2_000_000))
        )
        for i in range(n)
    )
    edges = [GraphEdge(f"v{i}", f"v{i + 1}") for i in range(n - 1) if rng.random() < 0.9]
    edges += [GraphEdge(f"v{rng.randrange(2)}", f"v{rng.randrange(n - 3, n)}") for _ in range(3)]
    return PartitionRequest(nodes, tuple(dict.fromkeys(edges)), PartitionDevices(count, None, 1.0))


@in_blocks("seed, make", itertools.product(range(60), (random_request, skipping)), kept=1)
def test_no_pipeline_below_a_load_leaves_its_windows(make, seed):
    request = make(seed)
    graph = contract(request)
    every = sorted(pipelines(graph))
    if graph.request.devices.count > len(graph.blocks):
        graph = replace(
            graph, request=replace(request, devices=replace(request.devices, count=len(graph.blocks)))
        )
        every = sorted(pipelines(graph))
    bounds = CutBounds(graph)
    loads = sorted({load for load, _ in every})
    for load in [*loads[:4], *(x * 0.999 for x in loads[:2]), 1000.0]:
        windows = bounds.windows(load)
        within = [choice for value, choice in every if value <= load]
        if windows is None:
            assert not within
            continue
        for choice in within:
            for j, (inside, outside) in enumerate(zip(windows.inside, windows.outside, strict=True)):
                held = np.array(choice) <= j
                assert not (inside & ~held).any() and not (outside & held).any()
                taken = sum(graph.blocks[b].time_ms for b in np.flatnonzero(held))
                assert windows.low_ms[j] - 1e-9 <= taken <= windows.high_ms[j] + 1e-9


@in_blocks("seed", range(60), kept=2)
def test_a_kernel_has_the_same_best_pipeline_and_expands_to_it(seed):
    graph = contract(wider(seed))
    whole = best_ideal_cuts(graph, 1, float("inf"), 100_000, time.monotonic() + 60)
    assert whole.complete
    if not whole.cuts:
        return
    value = whole.cuts[0][0]
    bounds = CutBounds(graph)
    for load in (value, value * 1.1, value * 2):
        kernel = kernelize(graph, bounds.windows(load))
        assert sorted(b for member in kernel.members for b in member) == list(range(len(graph.blocks)))
        assert all(a < b for a, b in kernel.graph.edges)
        limits = (kernel.windows.low_ms, kernel.windows.high_ms)
        small = best_ideal_cuts(kernel.graph, 1, load, 100_000, time.monotonic() + 60, times_ms=limits)
        assert small.complete and small.cuts[0][0] == pytest.approx(value)
        parts = kernel.expand(small.cuts[0][1])
        assert max(stage_loads(graph, parts)) == pytest.approx(value) and fits_memory(graph, parts)
        assert kernel.expand(kernel.restrict(parts)) == parts


@in_blocks("seed", range(40))
def test_every_pipeline_of_a_kernel_costs_what_it_costs_in_the_whole_graph(seed):
    graph = contract(skipping(seed))
    loads = sorted({value for value, _ in pipelines(graph)})
    kernel = kernelize(graph, CutBounds(graph).windows(loads[len(loads) // 8]))
    for value, choice in pipelines(kernel.graph):
        parts = tuple(tuple(b for b, d in enumerate(choice) if d == i) for i in range(max(choice) + 1))
        assert max(stage_loads(graph, kernel.expand(parts))) == pytest.approx(value)


def test_a_value_across_two_cuts_is_counted_once_and_merged_values_add_up():
    # Tight: [p q a] 2 + 1, [m m m] 3, [z z] 2 + 1, and 3 stages of 3 ms leave no room for a second transfer.
    times = (0.5, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    nodes = tuple(PartitionNode(str(i), t, 0, 500_000 if i < 2 else 0) for i, t in enumerate(times))
    edges = (*(GraphEdge(str(i), str(i + 1)) for i in range(7)), GraphEdge("0", "7"), GraphEdge("1", "7"))
    graph = contract(PartitionRequest(nodes, edges, PartitionDevices(3, None, 1.0)))
    windows = CutBounds(graph).windows(3.0)
    assert windows is not None and CutBounds(graph).windows(2.99) is None
    kernel = kernelize(graph, windows)
    assert kernel.members == ((0, 1, 2), (3, 4, 5), (6, 7))
    assert stage_loads(kernel.graph, ((0,), (1,), (2,))) == (3.0, 3.0, 3.0)


def test_windows_narrow_a_chain_to_its_cut_and_tell_when_nothing_fits():
    nodes = tuple(PartitionNode(str(i), 1.0, 1, 500_000) for i in range(40))
    edges = tuple(GraphEdge(str(i), str(i + 1)) for i in range(39))
    graph = contract(PartitionRequest(nodes, edges, PartitionDevices(2, None, 1.0)))
    bounds = CutBounds(graph)
    assert bounds.windows(20.4) is None  # an equal share and one transfer make 20.5
    kernel = kernelize(graph, bounds.windows(20.5))
    assert list(kernel.members) == [tuple(range(20)), tuple(range(20, 40))]


@in_blocks("seed", range(80))
def test_least_cuts_are_least_at_every_price(seed):
    graph = contract(random_request(seed))
    network = CutNetwork(graph)
    rng = np.random.default_rng(seed)
    weight = rng.choice((0.0, 0.5, 2.0), len(graph.sources))
    tilt = rng.uniform(-2, 2, len(graph.blocks))
    every = list(ideals(graph))
    inside = every[rng.integers(len(every))] & every[rng.integers(len(every))]
    allowed = [ideal for ideal in every if (ideal | ~inside).all()]
    outside = ~(allowed[rng.integers(len(allowed))] | allowed[rng.integers(len(allowed))])
    allowed = [ideal for ideal in allowed if not (ideal & outside).any()]
    for tilted in (None, tilt):

        def cost(ideal, tilted=tilted):
            crossing = [
                w
                for w, s in zip(weight, graph.sources, strict=True)
                if ideal[s.block] and not all(ideal[r] for r in s.readers)
            ]
            return sum(crossing) + (tilted[ideal].sum() if tilted is not None else 0.0)

        found = network.min_cut(inside, outside, weight, tilted)
        least = min(map(cost, allowed))
        assert any((found.ideal == ideal).all() for ideal in allowed)
        assert found.cost_ms == pytest.approx(least, abs=1e-6) and found.cost_ms <= least + 1e-12
        assert cost(found.ideal) == pytest.approx(least, abs=1e-6)


@repeated("seed", range(10), kept=1)
def test_without_all_ideals_the_gap_closes_honestly(seed, monkeypatch):
    request = replace(wider(seed), solver=SolverOptions(1.0))
    graph = contract(request)
    whole = best_ideal_cuts(graph, 1, float("inf"), 100_000, time.monotonic() + 60)
    monkeypatch.setattr("torchsplit_core.partitioning.solve.MAX_IDEALS", 12)
    outcome = solve_partition(request)
    if not whole.cuts:
        assert not outcome.candidates
        return
    value = whole.cuts[0][0]
    assert outcome.bound_ms <= value * (1 + 1e-6)
    if outcome.candidates:
        assert outcome.candidates[0].max_load_ms >= value * (1 - 1e-6)
        assert outcome.status != "optimal" or outcome.candidates[0].max_load_ms == pytest.approx(value)


def test_improving_only_yields_better_pipelines_that_are_what_they_say_and_often_the_best():
    reached = 0
    for seed in range(5):
        graph = contract(replace(wider(seed), devices=PartitionDevices(3, None, 1.0)))
        orders = list(topological_orders(graph, 4))
        last, first = max(best_prefix_cuts(graph, order, 1)[0] for order in orders)
        for value, parts in improve(
            graph, (last, first), orders, 0.0, time.monotonic() + 20, seed, minimize_max_load
        ):
            assert value < last and max(stage_loads(graph, parts)) == pytest.approx(value)
            last = value
        best = best_ideal_cuts(graph, 1, float("inf"), 100_000, time.monotonic() + 60).cuts[0][0]
        assert last >= best - 1e-9
        reached += last <= best + 1e-9
    assert reached >= 3


def test_the_cuts_of_a_chain_order_are_its_prefixes():
    graph = contract(wider(1))
    kernel = kernelize(graph, CutBounds(graph).windows(graph.total_ms * 2))
    cuts = parametric_cuts(kernel)
    order = chain_order(kernel.graph, cuts)
    at = {b: i for i, b in enumerate(order)}
    assert all(at[a] < at[b] for a, b in kernel.graph.edges)
    union = np.zeros(len(order), dtype=bool)
    for cut in cuts:
        union |= cut
        assert set(order[: int(union.sum())]) == set(np.flatnonzero(union).tolist())
    assert best_prefix_cuts(kernel.graph, order, 1)


@repeated("seed", range(6), kept=1)
def test_graphs_beyond_all_windows_still_get_candidates_and_a_bound(seed, monkeypatch):
    # The time allowed is used up: it is the search that is cut short here, not the proof it is compared with.
    request = replace(wider(seed), solver=SolverOptions(0.4))
    expected = solve_partition(wider(seed))
    for name in ("gap_closing", "device_placement"):
        monkeypatch.setattr(f"torchsplit_core.partitioning.search.{name}.MOST_BLOCKS", 4)
    monkeypatch.setattr("torchsplit_core.partitioning.search.prefix_dp._FULL_ORDER_BLOCKS", 4)
    monkeypatch.setattr("torchsplit_core.partitioning.search.prefix_dp._CUT_POSITIONS", 5)
    monkeypatch.setattr("torchsplit_core.partitioning.solve.MAX_IDEALS", 3)
    for tried in (request, replace(request, objective="latency")):
        outcome = solve_partition(tried)
        verify_outcome(tried, outcome)
        assert outcome.bound_ms is not None
    outcome = solve_partition(request)
    if outcome.candidates and expected.status == "optimal":
        best = expected.candidates[0].max_load_ms
        assert outcome.bound_ms <= best * (1 + 1e-9) <= outcome.candidates[0].max_load_ms * (1 + 2e-9)
