"""What a plan says beside its figures of links that nobody gave and of batches larger than a slice."""

from __future__ import annotations

from dataclasses import replace

from tests.support.planning.requests import A30, on_a30
from torchsplit_core.planning import plan
from torchsplit_core.planning.baselines.baseline_plans import build_baselines
from torchsplit_core.values import FleetEntry, PlanModel, PlanRequest, Point, Stage, Variant

FREE = "a: transfers between stages count as free. Set the link speed (link_gb_per_s)."


def cut(fixed: float, per_request: tuple[float, ...] = ()) -> PlanRequest:
    """A model in two stages, each on its own half of an A30."""
    point = Point(A30, "2g.12gb", 2, 40.0, 10.0, memory_gib=1.0)
    stages = (Stage("s0", (point,)), Stage("s1", (point,)))
    variant = Variant("cut", stages, (fixed,), cut_bytes_per_request=per_request)
    return on_a30(PlanModel("a", (variant,)))


def test_cuts_without_a_link_travel_free_and_the_plan_says_so():
    for request in (cut(1e6), cut(0.0, (1e6,))):
        outcome = plan(request)
        assert outcome.warnings == (FREE,)
        (greedy,) = [one for one in build_baselines(request, outcome) if one.name == "greedy"]
        assert greedy.outcome is not None and FREE in greedy.outcome.warnings
        assert plan(replace(request, link_gb_per_s=100.0)).warnings == ()
    assert plan(cut(0.0)).warnings == ()


def test_nobody_is_told_of_a_cut_that_is_not_in_use():
    request = cut(1e6)
    whole = Variant("whole", (Stage("whole", (Point(A30, "4g.24gb", 1, 400.0, 10.0, memory_gib=1.0),)),))
    (model,) = request.models
    assert plan(replace(request, models=(replace(model, variants=(*model.variants, whole)),))).warnings == ()


def test_a_network_of_one_node_counts_for_nothing():
    request = replace(cut(1e6), link_gb_per_s=10.0, network_gb_per_s=1.0)
    (warning,) = plan(request).warnings
    assert "network_gb_per_s counts for nothing" in warning
    two = (FleetEntry(A30, node="x"), FleetEntry(A30, node="y"))
    assert plan(replace(request, gpus=two)).warnings == ()


def test_a_batch_that_no_slice_beside_its_cut_holds():
    request = replace(cut(2e10), link_gb_per_s=1000.0)
    assert plan(request).warnings == (
        "a: cut 1 of cut carries 20 GB whatever the batch, more than the 11.7 GiB of 2g.12gb hold.",
    )
    assert plan(replace(cut(1e9), link_gb_per_s=1000.0)).warnings == ()


def test_bytes_across_cuts_are_those_of_the_throughput_in_the_batches_in_use():
    (model,) = plan(replace(cut(4e6, (1e6,)), link_gb_per_s=1000.0)).models
    assert (model.throughput_rps, model.bytes_across_cuts_per_s) == (40.0, 40.0 * (4e6 / 2 + 1e6))
