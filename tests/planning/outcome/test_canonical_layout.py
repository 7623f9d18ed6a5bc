"""Ties go to standard layouts, and to nothing that serves anybody otherwise."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from tests.support.planning.requests import whole_model
from tests.support.seeds import in_blocks
from torchsplit_core.planning import plan, violations
from torchsplit_core.values import FleetEntry, PlanModel, PlannedSlice, PlanRequest, Point

A100 = "A100-80GB"


def model(name: str, rates: dict[str, float], **changes: object) -> PlanModel:
    points = tuple(Point(A100, profile, 1, rate, 10.0, memory_gib=4.0) for profile, rate in rates.items())
    return whole_model(name, points, **changes)  # type: ignore[arg-type]


def profiles(request: PlanRequest) -> list[list[str]]:
    outcome = plan(request)
    assert outcome.status == "optimal" and not list(violations(request, outcome))
    return [sorted(item.profile for item in gpu.slices) for gpu in outcome.gpus]


@pytest.mark.parametrize("sharing", ["exclusive", "fractional"])
def test_seven_equal_slices_where_the_large_one_gives_no_more(sharing):
    same = {"1g.10gb": 50.0, "1g.20gb": 50.0}
    request = PlanRequest((FleetEntry(A100, count=2),), (model("a", same), model("b", same)), sharing=sharing)  # type: ignore[arg-type]
    assert profiles(request) == [["1g.10gb"] * 7] * 2


def test_the_large_one_stays_where_it_gives_more():
    rates = {"1g.10gb": 50.0, "1g.20gb": 55.0}
    request = PlanRequest((FleetEntry(A100),), (model("a", rates),))
    assert Counter(profiles(request)[0])["1g.20gb"] >= 1


def test_an_idle_slice_is_the_small_one():
    request = PlanRequest((FleetEntry(A100),), (model("a", {"2g.20gb": 50.0}),))
    assert profiles(request) == [["1g.10gb", "2g.20gb", "2g.20gb", "2g.20gb"]]


def test_only_offered_layouts_are_taken():
    same = {"1g.10gb": 50.0, "1g.20gb": 50.0}
    only = (("1g.10gb",) * 6 + ("1g.20gb",),)
    request = PlanRequest((FleetEntry(A100, layouts=only),), (model("a", same),))
    assert profiles(request) == [sorted(only[0])]


@pytest.mark.slow
@in_blocks("seed", range(30), kept=1)
def test_what_tenants_get_stays_what_it_is(seed, monkeypatch):
    rng = random.Random(seed)
    models = tuple(
        model(
            f"m{i}",
            {
                name: rng.choice([20.0, 40.0]) * size
                for name, size in (("1g.10gb", 1), ("1g.20gb", 1), ("2g.20gb", 2), ("3g.40gb", 3))
                if rng.random() < 0.8
            },
            demand_rps=rng.choice([10.0, 30.0]),
        )
        for i in range(3)
    )
    request = PlanRequest((FleetEntry(A100, count=rng.choice([1, 2])),), models)
    standard = plan(request)
    monkeypatch.setattr("torchsplit_core.planning.planner.canonicalised", lambda asked, outcome: outcome)
    free = plan(request)
    assert standard.objective == free.objective

    def busy(slices: tuple[PlannedSlice, ...]) -> Counter[tuple[str, float]]:
        return Counter((tenant.model, tenant.throughput_rps) for item in slices for tenant in item.tenants)

    for mine, other in zip(standard.gpus, free.gpus, strict=True):
        assert busy(mine.slices) == busy(other.slices)
        assert len({item.profile for item in mine.slices}) <= len({item.profile for item in other.slices})
    assert [replace(m, latency_ms=None) for m in standard.models] == [
        replace(m, latency_ms=None) for m in free.models
    ]
