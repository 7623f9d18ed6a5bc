"""Each search on its own against the oracle: together, one would hide the faults of another."""

import time
from math import inf

import pytest

from tests.support.partitioning.cases import least_load, load_request, random_request
from tests.support.seeds import in_blocks
from torchsplit_core.partitioning.blocks.block_graph import contract
from torchsplit_core.partitioning.blocks.topological_orders import topological_orders
from torchsplit_core.partitioning.candidates import fits_memory, stage_loads
from torchsplit_core.partitioning.search.free_assignment import best_free_assignment
from torchsplit_core.partitioning.search.ideal_dp import best_ideal_cuts
from torchsplit_core.partitioning.search.prefix_dp import best_prefix_cuts


def later():
    return time.monotonic() + 60


@in_blocks("seed", range(150))
def test_ideals_alone_are_exact_without_and_with_an_incumbent(seed):
    request = random_request(seed)
    graph = contract(request)
    expected = least_load(request)
    free = best_ideal_cuts(graph, 1, inf, 10_000, later())
    assert free.complete
    if expected is None:
        assert not free.cuts
        return
    tight = best_ideal_cuts(graph, 1, expected * (1 + 1e-9) + 1e-12, 10_000, later())
    for result in (free, tight):
        ((value, parts),) = result.cuts
        assert value == pytest.approx(expected)
        assert max(stage_loads(graph, parts)) == pytest.approx(value) and fits_memory(graph, parts)
    if expected > 0:
        below = best_ideal_cuts(graph, 1, expected * 0.99, 10_000, later())
        assert below.complete and not below.cuts


@in_blocks("seed", range(100))
def test_every_prefix_cut_has_the_load_it_tells_and_one_order_gives_the_optimum_of_its_intervals(seed):
    request = random_request(seed)
    graph = contract(request)
    n, k = len(graph.blocks), request.devices.count
    for order in topological_orders(graph, 5):
        at = {b: i for i, b in enumerate(order)}
        assert sorted(order) == list(range(n)) and all(at[a] < at[b] for a, b in graph.edges)
        found = best_prefix_cuts(graph, order, 3)
        for value, parts in found:
            assert max(stage_loads(graph, parts)) == pytest.approx(value) and fits_memory(graph, parts)
        every = [
            max(stage_loads(graph, parts))
            for mask in range(1 << (n - 1))
            if (parts := intervals(order, mask)) and len(parts) <= k and fits_memory(graph, parts)
        ]
        assert bool(every) == bool(found)
        if every:
            assert found[0][0] == pytest.approx(min(every))


def intervals(order, mask):
    """The order cut after every position whose bit is set."""
    ends = [i + 1 for i in range(len(order) - 1) if mask >> i & 1]
    return [order[a:b] for a, b in zip([0, *ends], [*ends, len(order)], strict=True)]


def test_only_allowed_positions_are_cut():
    graph = contract(load_request("bert24_layers_k6.json"))
    order = next(topological_orders(graph, 1))
    for _, parts in best_prefix_cuts(graph, order, 3, frozenset({9, 20})):
        assert {sum(map(len, parts[:i])) for i in range(1, len(parts))} <= {9, 20}


@in_blocks("seed", range(100))
def test_free_assignment_alone_is_exact(seed):
    request = random_request(seed, contiguous=False)
    graph = contract(request)
    expected = least_load(request)
    result = best_free_assignment(graph, (), later())
    assert result.complete
    if expected is None:
        assert not result.assignments
    else:
        assert min(value for value, _ in result.assignments) == pytest.approx(expected)


@pytest.mark.parametrize(("name", "expected"), [
    ("bert24_layers_k6.json", 17.79),
    ("resnet50_layers_k6.json", 34.22),
    ("bert3_operators_k3.json", 27.92),
])  # fmt: skip
def test_ideals_alone_reach_the_published_optimum(name, expected):
    result = best_ideal_cuts(contract(load_request(name)), 1, inf, 10_000, later())
    assert result.complete and result.cuts[0][0] == pytest.approx(expected, abs=0.005)
    assert best_ideal_cuts(contract(load_request(name)), 1, inf, 10, later()).complete is False
