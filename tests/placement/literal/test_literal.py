"""The literal program: its published size and values, equal to a look at every pipeline, honest about time."""

import random
from dataclasses import replace

import pytest

from tests.support.placement.oracle import best_value
from tests.support.placement.requests import random_request, tiny
from tests.support.seeds import repeated
from torchsplit_core.placement import place, violations
from torchsplit_core.placement.literal.formulation import build_program
from torchsplit_core.placement.literal.solve import solve_literal
from torchsplit_core.placement.model.segments import SegmentModel, build_instance
from torchsplit_core.placement.search import exhaustive, search_thresholds
from torchsplit_core.placement.search.exhaustive import search_exhaustively
from torchsplit_core.values import (
    InputFault,
    PlacementOutcome,
    PlacementSolver,
    TableThroughput,
    ThroughputRow,
)

pytestmark = pytest.mark.slow

CASES = [(units, split) for units in ("tokens_per_s", "seed_literal") for split in ("equal", "proportional")]


@pytest.mark.parametrize(
    ("most", "value", "ids"), [(1, 217.52, (0,)), (2, 301.784, (0, 1)), (4, 345.4944, (0, 1, 2, 3))]
)
@pytest.mark.parametrize("units", ["seed_literal", "tokens_per_s"])
def test_the_tiny_case_has_its_published_values(most, value, ids, units):
    outcome = place(tiny(most, method="literal", units=units))
    assert outcome.status == "optimal" and outcome.gap == 0
    assert outcome.throughput == pytest.approx(value, rel=1e-12)
    (segment,) = outcome.segments
    assert (segment.start_layer, segment.end_layer, segment.gpu_ids) == (1, 4, ids)
    assert segment.batch_per_gpu == 16 / len(ids)


def test_the_tiny_case_has_its_published_size():
    built = build_program(build_instance(SegmentModel(tiny(2))))
    assert (len(built.allocations), len(built.connections), built.variables) == (100, 420, 1041)
    model = built.model
    assert built.variables == len(model.z) + len(model.e) + len(model.tau) + len(model.rho) + 1
    statistics = place(tiny(2, method="literal")).statistics
    assert [statistics[name] for name in ("allocations", "connections", "variables")] == [100, 420, 1041]


def gpus_of(outcome: PlacementOutcome) -> int:
    return sum(len(segment.gpu_ids) for segment in outcome.segments)


@pytest.mark.parametrize(("units", "split"), CASES)
@repeated("block", range(5), kept=1)
def test_random_requests_equal_a_look_at_every_pipeline(units, split, block):
    """Together 240 requests; every placement is checked from the request, the exact search beside."""
    statuses = set()
    for seed in range(block * 12, block * 12 + 12):
        request = random_request(seed, units, split)
        best = best_value(request)
        for method in ("literal", "exact"):
            outcome = place(replace(request, solver=PlacementSolver(method)))  # type: ignore[arg-type]
            statuses.add(outcome.status)
            assert outcome.status == ("optimal" if best else "infeasible"), (seed, method, outcome)
            assert list(violations(request, outcome)) == []
            if best:
                assert outcome.throughput == pytest.approx(best, rel=1e-9), (seed, method)
                assert outcome.bound == outcome.throughput and outcome.gap == 0
            if method == "exact":
                # Small requests are looked at whole; the search of large ones agrees, in the number of GPUs too.
                thresholds = search_thresholds(build_instance(SegmentModel(request)), time_limit_s=60.0)
                assert thresholds.proven and thresholds.value == (outcome.throughput or 0.0), seed
                assert sum(len(gpus) for _, gpus in thresholds.segments) == gpus_of(outcome), seed
    assert "optimal" in statuses


def test_measured_tables_that_rise_and_fall_equal_a_look_at_every_pipeline():
    several = 0
    for seed in range(40):
        draw = random.Random(seed)
        request = random_request(seed, "tokens_per_s", "equal")
        rows = tuple(
            ThroughputRow(name, batch, layers, draw.uniform(20.0, 400.0))
            for name in dict.fromkeys(gpu.type for gpu in request.gpus)
            for batch in (1.0, 3.0, 8.0, 16.0)
            for layers in (1, 3, 4)
        )
        request = replace(request, throughput=TableThroughput(rows))
        best = best_value(request)
        try:
            outcomes = [
                place(replace(request, solver=PlacementSolver(method)))  # type: ignore[arg-type]
                for method in ("exact", "literal")
            ]
        except InputFault:
            assert best == 0, seed
            continue
        for outcome in outcomes:
            assert (outcome.throughput or 0.0) == pytest.approx(best, rel=1e-9), seed
        thresholds = search_thresholds(build_instance(SegmentModel(request)), time_limit_s=60.0)
        assert thresholds.proven and thresholds.value == (outcomes[0].throughput or 0.0), seed
        several += len(outcomes[0].segments) > 1
    assert several > 5


def test_the_literal_program_is_refused_before_it_fills_the_memory():
    gpus = tuple(replace(tiny().gpus[0], id=i) for i in range(60))
    links = ((10.0,) * 60,) * 60
    large = tiny(3, method="literal", gpus=gpus, bandwidth_gib_per_s=links)
    large = replace(large, model=replace(large.model, layers=14))
    with pytest.raises(InputFault, match="it is built for at most"):
        place(large)


def test_throughputs_beyond_the_solver_are_refused():
    links = tuple(tuple(1e14 * (i != j) for j in range(4)) for i in range(4))
    with pytest.raises(InputFault, match="HiGHS takes coefficients up to 1e15"):
        place(tiny(2, method="literal", bandwidth_gib_per_s=links))
    assert place(tiny(2, bandwidth_gib_per_s=links)).throughput == pytest.approx(301.784)


def test_time_that_runs_out_is_not_called_infeasible():
    request = tiny(4, method="literal", solver=PlacementSolver("literal", 1e-3))
    request = replace(request, model=replace(request.model, layers=12))
    outcome = place(request)
    assert outcome.status == "timeout" and outcome.segments == () and outcome.message
    found = solve_literal(build_instance(SegmentModel(request)), time_limit_s=1e-3)
    assert not found.proven and found.bound > 0


def test_an_infeasible_program_is_told_with_its_cause():
    cut = tuple(tuple(0.0 for _ in row) for row in tiny().bandwidth_gib_per_s)
    heavy = replace(tiny().model, layer_weight_gib=30.0)
    for method in ("literal", "exact"):
        outcome = place(tiny(1, method=method, model=heavy, bandwidth_gib_per_s=cut))
        assert outcome.status == "infeasible" and outcome.throughput is None and outcome.bound is None
        assert "links of 0 leave no way through" in outcome.message
        outcome = place(tiny(1, method=method, model=replace(heavy, layers=7)))
        assert outcome.status == "infeasible"
        assert "2 on 2 × A100 (80 GiB), 1 on 2 × V100 (32 GiB)" in outcome.message


def test_a_look_at_everything_is_for_small_requests(monkeypatch):
    assert search_exhaustively(build_instance(SegmentModel(tiny(4)))) is not None
    gpus = tuple(replace(tiny().gpus[i % 4], id=i) for i in range(12))
    links = tuple(tuple(float(1 + (i * 7 + j * 3) % 5) for j in range(12)) for i in range(12))
    many = tiny(4, gpus=gpus, bandwidth_gib_per_s=links)
    assert search_exhaustively(build_instance(SegmentModel(many))) is None
    assert place(many).status == "optimal"
    bound = replace(tiny(2), bandwidth_gib_per_s=((1e-3,) * 4,) * 4, model=replace(tiny().model, layers=6))
    held = build_instance(SegmentModel(bound))
    assert search_exhaustively(held) is not None
    monkeypatch.setattr(exhaustive, "MOST_STEPS", 1)
    assert search_exhaustively(held) is None
    assert place(bound).status == "optimal"
