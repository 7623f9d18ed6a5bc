"""Cut variants: chosen where they win, refused where transfer or latency forbid them."""

from dataclasses import replace

import pytest

from tests.support.planning.requests import A30, on_a30, whole_model
from tests.support.planning.variants import HALVES, cut_wins
from torchsplit_core.planning import plan
from torchsplit_core.values import FleetEntry, Objective, PlanModel, PlanRequest, Point, Stage, Variant


def test_faster_cut_variant_wins():
    outcome = plan(cut_wins())
    (model,) = outcome.models
    assert (model.variant, model.throughput_rps) == ("cut", 30.0)
    # Two stages of 20 ms and 10^6 bytes over 1 GB/s.
    assert model.latency_ms == pytest.approx(41.0)
    assert {t.stage for s in outcome.gpus[0].slices for t in s.tenants} == {"first", "second"}


def test_cut_variant_wins_where_the_whole_does_not_fit():
    request = cut_wins()
    whole, cut = request.models[0].variants
    (stage,) = whole.stages
    large = replace(
        whole,
        stages=(replace(stage, points=(replace(stage.points[0], memory_gib=14.0, throughput_rps=99.0),)),),
    )
    outcome = plan(replace(request, models=(replace(request.models[0], variants=(large, cut)),)))
    assert outcome.models[0].variant == "cut"
    assert any("more memory" in warning for warning in outcome.warnings)


def test_transfer_counts_against_the_limit():
    request = cut_wins()
    for limit, variant in ((41.0, "cut"), (40.5, None), (50.0, "cut")):
        model = replace(request.models[0], max_latency_ms=limit)
        assert plan(replace(request, models=(model,))).models[0].variant == variant
    slow = replace(request, link_gb_per_s=0.05, models=(replace(request.models[0], max_latency_ms=50.0),))
    assert plan(slow).models[0].variant == "whole"
    assert plan(replace(slow, link_gb_per_s=None)).models[0].variant == "cut"


def test_latencies_of_stages_are_kept_in_step():
    """Either stage may use its long point, both together may not."""
    points = (Point(A30, "2g.12gb", 1, 10.0, 10.0), Point(A30, "2g.12gb", 4, 40.0, 30.0))
    stages = (Stage("first", points), Stage("second", (points[0], replace(points[1], throughput_rps=20.0))))
    model = PlanModel("a", (Variant("cut", stages, (0.0,)),), max_latency_ms=40.0)
    request = on_a30(model, count=2, layouts=HALVES, objective=Objective("max_min"))
    # Four slices: one long first (40) beside three short seconds (30); with both long it is 40.
    assert plan(request).models[0].throughput_rps == 30.0
    assert (
        plan(replace(request, models=(replace(model, max_latency_ms=60.0),))).models[0].throughput_rps == 40.0
    )


def test_better_layout_and_profile_are_found_across_types():
    point = Point("A100-80GB", "3g.40gb", 1, 30.0, 10.0)
    model = whole_model("a", (Point(A30, "4g.24gb", 1, 20.0, 10.0), point))
    request = PlanRequest((FleetEntry(A30), FleetEntry("A100-80GB", count=2)), (model,))
    outcome = plan(request)
    assert outcome.models[0].throughput_rps == 20.0 + 4 * 30.0
    assert [gpu.id for gpu in outcome.gpus] == ["gpu0", "gpu1", "gpu2"]
