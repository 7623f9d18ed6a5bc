"""Devices of different speed: equal to a look at every pipeline and every choice of devices."""

import random
from dataclasses import replace

import pytest

from tests.support.partitioning.oracle import best_value, placed_request
from tests.support.seeds import in_blocks, repeated
from torchsplit_core.partitioning import solve_partition, verify_candidate, verify_outcome
from torchsplit_core.partitioning.blocks.block_graph import contract
from torchsplit_core.partitioning.candidates import make_candidate, objective_value, stage_loads
from torchsplit_core.partitioning.search.heterogeneous_dp import best_prefix_placements
from torchsplit_core.values import (
    GraphEdge,
    InputFault,
    InternalFault,
    PartitionDevices,
    PartitionNode,
    PartitionRequest,
    SolverOptions,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("objective", ["throughput", "latency"])
@in_blocks("seed", range(60))
def test_the_best_equals_a_look_at_every_placement(seed, objective):
    request = placed_request(seed, objective, speeds=True)
    outcome = solve_partition(request)
    expected = best_value(request)
    if expected is None:
        assert outcome.status == "infeasible" and outcome.message
        return
    best = outcome.candidates[0]
    assert outcome.status == "optimal" and outcome.bound_ms == pytest.approx(expected)
    assert (best.latency_ms if objective == "latency" else best.max_load_ms) == pytest.approx(expected)
    assert len(best.devices) == len(best.stages)
    verify_outcome(request, outcome)


@in_blocks("seed", range(40), kept=1)
def test_without_all_ideals_the_bound_still_holds(seed, monkeypatch):
    monkeypatch.setattr("torchsplit_core.partitioning.search.device_placement._MOST_IDEALS", 0)
    request = placed_request(seed, "throughput", speeds=True)
    outcome = solve_partition(request)
    expected = best_value(request)
    if outcome.candidates:
        assert outcome.bound_ms <= expected * (1 + 1e-9) + 1e-12
        assert outcome.candidates[0].max_load_ms >= expected * (1 - 1e-9) - 1e-12


def chain(times, factors, memory_bytes=None):
    nodes = tuple(PartitionNode(str(i), t, 10) for i, t in enumerate(times))
    edges = tuple(GraphEdge(str(i), str(i + 1)) for i in range(len(times) - 1))
    return PartitionRequest(nodes, edges, PartitionDevices(len(factors), memory_bytes, None, factors))


def test_the_slow_device_gets_less_wherever_it_stands():
    best = solve_partition(chain((2.0, 2.0, 2.0), (2.0, 1.0))).candidates[0]
    assert best.max_load_ms == 4.0 and sorted(best.loads_ms) == [4.0, 4.0]
    assert best.devices[best.stages.index(min(best.stages, key=len))] == 0
    alone = solve_partition(chain((2.0, 2.0), (9.0, 1.0))).candidates[0]
    assert alone.devices == (1,) and alone.max_load_ms == 4.0


def test_equal_factors_are_equal_devices_at_that_speed():
    plain = solve_partition(replace(chain((1.0, 2.0, 3.0, 4.0), (1.0, 1.0)), devices=PartitionDevices(2)))
    slowed = solve_partition(chain((1.0, 2.0, 3.0, 4.0), (2.0, 2.0)))
    assert slowed.candidates[0].max_load_ms == 2 * plain.candidates[0].max_load_ms
    assert slowed.candidates[0].stages == plain.candidates[0].stages


def test_a_long_order_is_cut_at_narrow_places(monkeypatch):
    monkeypatch.setattr("torchsplit_core.partitioning.search.heterogeneous_dp._FULL_ORDER_BLOCKS", 150)
    nodes = tuple(PartitionNode(str(i), 1.0, 0, 900_000 if i % 10 else 1000) for i in range(1500))
    edges = tuple(GraphEdge(str(i), str(i + 1)) for i in range(1499))
    request = PartitionRequest(nodes, edges, PartitionDevices(2, None, 1.0, (1.0, 2.0)))
    graph = contract(request)
    value, parts, devices = best_prefix_placements(graph, range(1500))[0]
    assert make_candidate(graph, parts, devices).cut_bytes == (1000,)
    assert value == max(stage_loads(graph, parts, devices)) == pytest.approx(1000, abs=10)


@pytest.mark.parametrize(
    "factors", [(1.0,), (1.0, 0.0), (1.0, -1.0), (1.0, float("nan")), (1.0, float("inf"))]
)
def test_false_factors_are_the_users_fault(factors):
    request = chain((1.0, 1.0), (1.0, 1.0))
    with pytest.raises(InputFault, match="time_factors"):
        solve_partition(replace(request, devices=replace(request.devices, time_factors=factors)))


def test_a_false_placement_is_noticed():
    request = chain((2.0, 2.0, 2.0), (2.0, 1.0))
    good = solve_partition(request).candidates[0]
    for devices in ((), (0, 0), (0, 2), good.devices[::-1]):
        with pytest.raises(InternalFault):
            verify_candidate(request, replace(good, devices=devices))
    plain = replace(request, devices=PartitionDevices(2))
    with pytest.raises(InternalFault, match="all are equal"):
        verify_candidate(plain, replace(solve_partition(plain).candidates[0], devices=(0, 1)))


@repeated("objective", ["throughput", "latency"], kept=0)
def test_zones_around_the_cuts_improve_on_single_orders(objective, monkeypatch):
    monkeypatch.setattr("torchsplit_core.partitioning.search.device_placement._MOST_IDEALS", 0)
    monkeypatch.setattr("torchsplit_core.partitioning.search.device_placement._ORDERS", 1)
    lower = 0
    for seed in range(4):
        request = replace(wide(seed), objective=objective)
        with monkeypatch.context() as context:
            context.setattr(
                "torchsplit_core.partitioning.search.device_placement.improve", lambda *told: iter(())
            )
            before = solve_partition(request)
        after = solve_partition(request)
        verify_outcome(request, after)
        assert objective_value(after.candidates[0], objective) <= objective_value(
            before.candidates[0], objective
        )
        lower += (
            objective_value(after.candidates[0], objective)
            < objective_value(before.candidates[0], objective) - 1e-9
        )
    assert lower


def wide(seed):
    """Sixty nodes in layers of six, on three devices of different speed with little room."""
    rng = random.Random(seed)
    nodes = tuple(PartitionNode(str(i), rng.uniform(0.5, 3), 10, rng.randrange(2_000_000)) for i in range(60))
    edges = tuple(
        GraphEdge(str(i - i % 6 - 6 + rng.randrange(6)), str(i)) for i in range(6, 60) for _ in range(2)
    )
    devices = PartitionDevices(3, 250, 1.0, (1.0, 1.3, 1.7))
    return PartitionRequest(nodes, tuple(dict.fromkeys(edges)), devices, solver=SolverOptions(1.5))
