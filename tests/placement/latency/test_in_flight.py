"""Sequences in flight: every rule of a decode against a look at every pipeline, by the look and by the programs."""

from dataclasses import replace

import pytest

from tests.support.placement.decode_oracle import best_of, best_sum_of, curve_of
from tests.support.placement.requests import random_decode
from tests.support.seeds import repeated
from torchsplit_core.placement import place, violations
from torchsplit_core.placement.frontier import frontier, frontier_violations
from torchsplit_core.placement.frontier import in_flight as curve_in_flight
from torchsplit_core.placement.latency.in_flight import pipeline_search
from torchsplit_core.values import PlacementSolver

SPLITS = ("equal", "proportional", "tensor")


@pytest.mark.parametrize("split", SPLITS)
def test_a_decode_is_placed_as_a_look_at_every_pipeline_has_it(split):
    found = 0
    for seed in range(100):
        request = random_decode(seed, split)
        value, outcome = best_of(request), place(request)
        assert outcome.status == ("optimal" if value else "infeasible"), seed
        assert (outcome.throughput or 0.0) == pytest.approx(value, rel=1e-9), seed
        assert not list(violations(request, outcome)), seed
        found += value > 0
    assert found > 40


@pytest.mark.slow
@repeated("split", SPLITS, kept=1)
def test_the_programs_find_what_the_look_finds(split, monkeypatch):
    monkeypatch.setattr(pipeline_search, "search_exhaustively", lambda instance: None)
    proven = 0
    for seed in range(100, 150):
        request = replace(random_decode(seed, split), solver=PlacementSolver("exact", 10.0))
        value, outcome = best_of(request), place(request)
        reached = outcome.throughput or 0.0
        assert reached <= value * (1 + 1e-9), seed
        if outcome.status in ("optimal", "infeasible"):
            assert reached == pytest.approx(value, rel=1e-6), seed
            proven += 1
        else:
            assert outcome.bound is not None and outcome.bound >= value * (1 - 1e-9), seed
    assert proven > 40


@pytest.mark.parametrize("split", SPLITS)
def test_a_prefill_is_placed_with_layers_cut_too(split):
    for seed in range(30):
        request = random_decode(seed, split, phase="prefill")
        outcome = place(request)
        assert (outcome.throughput or 0.0) == pytest.approx(best_of(request), rel=1e-9), seed


@pytest.mark.slow
@repeated("split", SPLITS, kept=1)
def test_a_curve_is_that_of_every_pipeline(split, monkeypatch):
    for seed in range(60):
        if seed == 30:
            monkeypatch.setattr(curve_in_flight, "enumerate_pareto_front", lambda instance, costs: None)
        request = replace(random_decode(seed, split), solver=PlacementSolver("exact", 10.0))
        expected, curve = curve_of(request), frontier(request)
        assert not list(frontier_violations(request, curve)), seed
        if curve.complete:
            points = [(point.throughput, point.latency_s) for point in curve.points]
            assert points == [pytest.approx(one[:2], rel=1e-6) for one in expected], seed
        for point in curve.points:
            quickest = min(
                seconds for value, seconds, _ in expected if value >= point.throughput * (1 - 1e-9)
            )
            assert quickest >= point.latency_bound_s * (1 - 1e-6), seed


@pytest.mark.slow
@repeated("split", SPLITS, kept=1)
def test_several_pipelines_of_a_decode_are_the_best_of_all_sets(split):
    several = 0
    for seed in range(40):
        request = replace(random_decode(seed, split), max_replicas=2)
        expected, outcome = best_sum_of(request, 2), place(request)
        assert not list(violations(request, outcome)), seed
        assert (outcome.throughput or 0.0) == pytest.approx(expected, rel=1e-6), seed
        assert outcome.status == ("optimal" if expected else "infeasible"), seed
        several += len(outcome.replicas) > 1
    assert several > 3
