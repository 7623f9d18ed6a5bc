"""Pipelines of least latency: equal to a look at every one, verified, and bounded where that is not done."""

from dataclasses import replace

import pytest

from tests.support.partitioning.oracle import best_value, placed_request
from tests.support.seeds import in_blocks
from torchsplit_core.files import read_text, write_text
from torchsplit_core.partitioning import solve_partition, verify_candidate, verify_outcome
from torchsplit_core.values import (
    GraphEdge,
    InputFault,
    InternalFault,
    PartitionDevices,
    PartitionNode,
    PartitionRequest,
)

pytestmark = pytest.mark.slow


@in_blocks("seed", range(60))
def test_the_latency_equals_a_look_at_every_pipeline(seed):
    request = placed_request(seed, "latency", speeds=False)
    outcome = solve_partition(request)
    expected = best_value(request)
    if expected is None:
        assert outcome.status == "infeasible" and outcome.message
    else:
        assert outcome.status == "optimal" and outcome.bound_ms == pytest.approx(expected)
        assert outcome.candidates[0].latency_ms == pytest.approx(expected)
        verify_outcome(request, outcome)


@in_blocks("seed", range(40), kept=2)
@pytest.mark.parametrize("speeds", [False, True])
def test_without_all_ideals_the_bound_still_holds(seed, speeds, monkeypatch):
    monkeypatch.setattr("torchsplit_core.partitioning.search.device_placement._MOST_IDEALS", 0)
    request = placed_request(seed, "latency", speeds)
    outcome = solve_partition(request)
    expected = best_value(request)
    if outcome.candidates:
        assert outcome.bound_ms <= expected * (1 + 1e-9) + 1e-12
        assert outcome.candidates[0].latency_ms >= expected * (1 - 1e-9) - 1e-12
        assert (outcome.status == "optimal") == (outcome.gap <= 1e-6)
    else:
        assert outcome.status == "timeout" or expected is None


def chain(memory_bytes):
    nodes = tuple(
        PartitionNode(str(i), 1.0, 10, size) for i, size in enumerate((4_000_000, 1_000_000, 3_000_000, 0))
    )
    edges = tuple(GraphEdge(str(i), str(i + 1)) for i in range(3))
    return PartitionRequest(nodes, edges, PartitionDevices(3, memory_bytes, 1.0), objective="latency")


def test_all_stays_on_one_device_where_it_fits_and_else_is_cut_where_least_is_sent():
    free = solve_partition(chain(None)).candidates[0]
    assert free.stages == (("0", "1", "2", "3"),) and free.latency_ms == 4.0
    tight = solve_partition(chain(30))
    assert tight.status == "optimal" and tight.candidates[0].latency_ms == 5.0
    assert tight.candidates[0].stages == (("0", "1"), ("2", "3"))
    assert tight.candidates[0].loads_ms == (3.0, 3.0)


def test_a_value_is_paid_once_for_each_stage_that_reads_it():
    nodes = tuple(PartitionNode(name, 1.0, 10, 2_000_000) for name in "abcd")
    edges = tuple(GraphEdge("a", name) for name in "bcd")
    request = PartitionRequest(nodes, edges, PartitionDevices(4, 10, 1.0), objective="latency")
    best = solve_partition(request).candidates[0]
    assert len(best.stages) == 4 and best.latency_ms == 4 + 3 * 2 and max(best.loads_ms) == 3.0


def test_candidates_are_ranked_by_latency_and_a_false_one_is_noticed():
    request = chain(30)
    outcome = solve_partition(request)
    told = [candidate.latency_ms for candidate in outcome.candidates]
    assert len(told) > 1 and told == sorted(told)
    best = outcome.candidates[0]
    for false in (4.9, None):
        with pytest.raises(InternalFault, match="latency"):
            verify_candidate(request, replace(best, latency_ms=false))
    with pytest.raises(InternalFault, match="order"):
        verify_outcome(request, replace(outcome, candidates=outcome.candidates[::-1]))


def test_what_is_not_offered_is_refused():
    with pytest.raises(InputFault, match="for contiguous stages alone"):
        solve_partition(replace(chain(30), contiguous=False))
    with pytest.raises(InputFault, match="Choose throughput or latency"):
        solve_partition(replace(chain(30), objective="speed"))


def test_objective_speeds_and_placement_survive_their_files():
    request = placed_request(3, "latency", speeds=True)
    assert read_text(write_text(request)) == ("torchsplit.partition_request", request)
    outcome = solve_partition(request)
    assert outcome.candidates[0].devices
    assert read_text(write_text(outcome))[1].candidates == outcome.candidates
