"""Partition requests against an oracle that tries everything, and on public graphs."""

from dataclasses import replace

import pytest

from tests.support.partitioning.cases import least_load, load_request, random_request
from tests.support.seeds import in_blocks
from torchsplit_core.partitioning import solve_partition, verify_candidate, verify_outcome
from torchsplit_core.partitioning.candidates import stage_sets
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


@pytest.mark.parametrize("contiguous", [True, False])
@in_blocks("seed", range(150))
def test_the_best_equals_trying_everything(seed, contiguous):
    request = random_request(seed, contiguous)
    outcome = solve_partition(request)
    expected = least_load(request)
    if expected is None:
        assert outcome.status == "infeasible" and not outcome.candidates and outcome.message
        assert outcome.bound_ms is None and outcome.gap is None
    else:
        assert outcome.status == "optimal" and outcome.gap == pytest.approx(0, abs=1e-6)
        assert outcome.candidates[0].max_load_ms == pytest.approx(expected)
        assert outcome.bound_ms == pytest.approx(expected)
        verify_outcome(request, outcome)
        assert len(outcome.candidates) <= request.top_k
        assert len(set(map(stage_sets, outcome.candidates))) == len(outcome.candidates)


@pytest.mark.parametrize("contiguous", [True, False])
def test_stages_in_another_order_are_no_candidate_of_their_own(contiguous):
    nodes = (PartitionNode("a", 7.0), PartitionNode("b", 3.0), PartitionNode("c", 4.0))
    request = PartitionRequest(nodes, (GraphEdge("b", "c"),), PartitionDevices(3), contiguous, top_k=3)
    outcome = solve_partition(request)
    assert [candidate.max_load_ms for candidate in outcome.candidates] == [7.0, 7.0, 10.0]
    assert outcome.status == "optimal" and outcome.bound_ms == 7.0


@in_blocks("seed", [0, *range(7, 23), *range(40, 60)])
def test_prefixes_alone_are_valid_and_the_bound_holds(seed, monkeypatch):
    monkeypatch.setattr("torchsplit_core.partitioning.solve.MAX_IDEALS", 0)
    request = random_request(seed)
    outcome = solve_partition(request)
    expected = least_load(request)
    if outcome.candidates:
        assert expected is not None
        assert outcome.bound_ms <= expected * (1 + 1e-9)
        assert outcome.candidates[0].max_load_ms >= expected * (1 - 1e-9)
        assert (outcome.status == "optimal") == (outcome.gap <= 1e-6)
    else:
        assert outcome.status in ("timeout", "infeasible")
        assert outcome.status == "timeout" or expected is None


@pytest.mark.parametrize(("name", "expected"), [
    ("bert24_layers_k6.json", 17.79),
    ("resnet50_layers_k6.json", 34.22),
    ("bert3_operators_k3.json", 27.92),
])  # fmt: skip
def test_public_graphs_reach_the_published_optimum_with_proof(name, expected):
    request = load_request(name, top_k=5)
    outcome = solve_partition(request)
    assert outcome.candidates[0].max_load_ms == pytest.approx(expected, abs=0.005)
    assert outcome.status == "optimal" and len(outcome.candidates) == 5


def chain(times, **devices):
    nodes = tuple(PartitionNode(str(i), t, 10, 1_000_000) for i, t in enumerate(times))
    edges = tuple(GraphEdge(str(i), str(i + 1)) for i in range(len(times) - 1))
    return PartitionRequest(nodes, edges, PartitionDevices(**devices))


def test_loads_cut_bytes_and_memory_of_a_chain():
    outcome = solve_partition(chain((4, 4), count=2, link_gb_per_s=1.0))
    best = outcome.candidates[0]
    assert best.stages == (("0",), ("1",)) and best.loads_ms == (5.0, 5.0)
    assert best.cut_bytes == (1_000_000,) and best.peak_memory_bytes == (10, 10)


def test_a_slow_link_keeps_all_on_one_device():
    assert len(solve_partition(chain((1, 1), count=2, link_gb_per_s=0.1)).candidates[0].stages) == 1


def test_a_group_around_other_nodes_takes_them_along():
    request = chain((1, 1, 1, 1), count=2)
    nodes = tuple(replace(n, group="g" if n.id in "02" else None) for n in request.nodes)
    best = solve_partition(replace(request, nodes=nodes)).candidates[0]
    assert best.stages == (("0", "1", "2"), ("3",))


def test_infeasible_names_the_group_or_node_that_does_not_fit():
    request = chain((1, 1, 1), count=3, memory_bytes=15)
    nodes = tuple(replace(n, group="pair" if n.id in "02" else None) for n in request.nodes)
    outcome = solve_partition(replace(request, nodes=nodes))
    assert outcome.status == "infeasible" and "group pair with what lies between" in outcome.message
    assert "node 0" in solve_partition(chain((1, 1), count=2, memory_bytes=9)).message
    assert "devices have 20" in solve_partition(chain((1, 1, 1), count=1, memory_bytes=20)).message
    packing = replace(
        chain((1, 1, 1), count=2, memory_bytes=29),
        nodes=tuple(PartitionNode(str(i), 1, m) for i, m in enumerate((19, 20, 19))),
    )
    assert solve_partition(packing).status == "infeasible"


def test_more_devices_than_nodes_are_left_unused():
    outcome = solve_partition(chain((3, 1), count=9))
    assert outcome.status == "optimal" and outcome.candidates[0].stages == (("0",), ("1",))
    assert solve_partition(chain((3,), count=9)).candidates[0].stages == (("0",),)


def test_groups_that_no_order_of_stages_allows_share_one():
    request = chain((1, 1, 1, 1, 1), count=3)
    nodes = tuple(replace(n, group={"0": "a", "2": "a", "1": "b", "3": "b"}.get(n.id)) for n in request.nodes)
    best = solve_partition(replace(request, nodes=nodes)).candidates[0]
    assert best.stages == (("0", "1", "2", "3"), ("4",))
    tight = replace(request, nodes=nodes, devices=replace(request.devices, memory_bytes=39))
    outcome = solve_partition(tight)
    assert outcome.status == "infeasible" and "groups a, b (interleaved" in outcome.message


def test_a_large_request_without_room_is_infeasible_and_names_what_is_largest():
    nodes = tuple(PartitionNode(str(i), 1.0, 60 if i % 2 else 41) for i in range(200))
    edges = tuple(GraphEdge(str(i), str(i + 1)) for i in range(199))
    request = PartitionRequest(nodes, edges, PartitionDevices(150, 100))
    outcome = solve_partition(request)
    assert outcome.status == "infeasible" and "60 bytes" in outcome.message


@pytest.mark.repeated
def test_wide_graphs_end_with_a_gap_and_in_time():
    nodes = tuple(PartitionNode(f"v{i}", 1 + i % 7, 0, 100_000 * (i % 5)) for i in range(120))
    edges = tuple(GraphEdge(f"v{i}", f"v{j}") for i in range(60) for j in (60 + i, 60 + (7 * i) % 60))
    request = PartitionRequest(
        nodes, edges, PartitionDevices(5, None, 1.0), top_k=3, solver=SolverOptions(3.0)
    )
    outcome = solve_partition(request)
    assert outcome.status == "feasible" and 0 < outcome.gap < 0.5
    free = solve_partition(replace(request, contiguous=False))
    assert free.candidates and free.bound_ms <= free.candidates[0].max_load_ms


@pytest.mark.parametrize("change", [
    {"nodes": ()},
    {"nodes": (PartitionNode("0", 1), PartitionNode("0", 1))},
    {"nodes": (PartitionNode("0", -1.0), PartitionNode("1", 1))},
    {"nodes": (PartitionNode("0", float("nan")), PartitionNode("1", 1))},
    {"nodes": (PartitionNode("0", 1.0, memory_bytes=-1), PartitionNode("1", 1))},
    {"edges": (GraphEdge("0", "ghost"),)},
    {"edges": (GraphEdge("0", "1"), GraphEdge("1", "0"))},
    {"edges": (GraphEdge("0", "0"),)},
    {"devices": PartitionDevices(0)},
    {"devices": PartitionDevices(2, link_gb_per_s=0.0)},
    {"devices": PartitionDevices(2, memory_bytes=0)},
    {"top_k": 0},
    {"solver": SolverOptions(0.0)},
])  # fmt: skip
def test_bad_requests_are_the_users_fault(change):
    with pytest.raises(InputFault):
        solve_partition(replace(chain((1, 1), count=2), **change))


def test_verification_notices_every_false_figure():
    request = replace(chain((4, 4, 4), count=2, link_gb_per_s=1.0, memory_bytes=20))
    good = solve_partition(request).candidates[0]
    verify_candidate(request, good)
    wrong = [
        {"loads_ms": (1.0, 1.0)}, {"max_load_ms": 0.5}, {"cut_bytes": (0,)}, {"cut_bytes": ()},
        {"peak_memory_bytes": (0, 0)}, {"stages": (("0", "1"), ("2", "2"))},
        {"stages": (("0", "1", "2"), ())}, {"stages": (("2",), ("0", "1"))}, {"stages": (("0", "1", "2"),)},
        {"stages": (("0",), ("1",), ("2",))}, {"stages": (("0",), ("1",))},
    ]  # fmt: skip
    for change in wrong:
        with pytest.raises(InternalFault):
            verify_candidate(request, replace(good, **change))
    grouped = replace(request, nodes=tuple(replace(n, group="g") for n in request.nodes))
    with pytest.raises(InternalFault, match="group"):
        verify_candidate(grouped, good)
    outcome = solve_partition(request)
    with pytest.raises(InternalFault):
        verify_outcome(request, replace(outcome, bound_ms=outcome.candidates[0].max_load_ms + 1))
