"""Feasible plans explained: each statement against plans reckoned by hand, or by another plan."""

import json
from dataclasses import replace

import pytest

from tests.support.planning.insight import changed, explain
from tests.support.planning.requests import A30, on_a30, published, simple, whole_model
from tests.support.seeds import repeated
from torchsplit_core import workflow
from torchsplit_core.files import read_text, write_text
from torchsplit_core.planning import plan
from torchsplit_core.planning.explanation.explain import explain_plan
from torchsplit_core.values import (
    ChangeEffect,
    Colocation,
    FleetEntry,
    InputFault,
    LayoutReason,
    Objective,
    PlanExplanation,
    PlanModel,
    PlanRequest,
    Point,
    Stage,
    Variant,
)

pytestmark = pytest.mark.slow


def binds(found: PlanExplanation, model: str) -> dict[str, bool | None]:
    (one,) = [entry for entry in found.models if entry.model == model]
    return {limit.kind: limit.binds for limit in one.limits}


def evidence(found: PlanExplanation, model: str, kind: str) -> ChangeEffect:
    (one,) = [entry for entry in found.models if entry.model == model]
    (change,) = [limit.change for limit in one.limits if limit.kind == kind]
    assert change is not None
    return change


def batches(name: str, *rows: tuple[str, float, float], **demands: object) -> PlanModel:
    """A model of one stage with (profile, requests/s, latency in ms) rows, each a batch size of its own."""
    points = tuple(Point(A30, profile, n + 1, rate, ms) for n, (profile, rate, ms) in enumerate(rows))
    return whole_model(name, points, **demands)  # type: ignore[arg-type]


def test_capacity_binds_and_one_more_gpu_is_worth_what_it_brings():
    explanation = explain(on_a30(simple("a", {"2g.12gb": 10.0}), simple("b", {"2g.12gb": 10.0})))
    assert binds(explanation, "a") == binds(explanation, "b") == {"capacity": True}
    more = changed(explanation, "gpu", new=2.0)
    assert (more.effect, more.old, more.level, more.gpu_id) == ("better", 1.0, 1, "gpu0")
    assert (more.value_before, more.value_after, more.bound_after, more.proven) == (10.0, 20.0, 20.0, True)
    assert explanation.complete and [change.new for change in explanation.changes] == [2.0]


def test_a_latency_limit_binds_and_a_tenth_more_is_enough_or_not():
    rows = (("4g.24gb", 10.0, 10.0), ("4g.24gb", 16.0, 30.0))
    for limit, after in ((20.0, 10.0), (28.0, 16.0)):
        explanation = explain(on_a30(batches("a", *rows, max_latency_ms=limit)))
        assert binds(explanation, "a") == {"capacity": True, "max_latency_ms": True}
        dropped = evidence(explanation, "a", "max_latency_ms")
        assert (dropped.old, dropped.new, dropped.value_after, dropped.proven) == (limit, None, 16.0, True)
        softer = changed(explanation, "max_latency_ms", "a")
        assert softer.new == pytest.approx(1.1 * limit)
        assert softer.effect == ("better" if after > 10.0 else "same")
        assert softer.value_after == softer.bound_after == after
    explanation = explain(on_a30(batches("a", *rows, max_latency_ms=30.0)))
    assert binds(explanation, "a") == {"capacity": True, "max_latency_ms": False}


def cut(link_bytes: float, **demands: object) -> PlanModel:
    """Two stages of 40 requests/s and 10 ms, each on its own half of an A30, with these bytes a request between."""
    stages = tuple(Stage(name, (Point(A30, "2g.12gb", 1, 40.0, 10.0),)) for name in ("s0", "s1"))
    variant = Variant("cut", stages, (0.0,), cut_bytes_per_request=(link_bytes,))
    return PlanModel("a", (variant,), **demands)  # type: ignore[arg-type]


def test_a_link_binds_where_it_holds_throughput():
    explanation = explain(on_a30(cut(1e8), link_gb_per_s=1.0))
    assert binds(explanation, "a") == {"capacity": True, "link": True}
    dropped = evidence(explanation, "a", "link")
    assert (dropped.old, dropped.new, dropped.value_before, dropped.value_after) == (1.0, None, 10.0, 40.0)
    faster = changed(explanation, "link")
    assert (faster.old, faster.new, faster.value_after, faster.proven) == (1.0, 2.0, 20.0, True)
    free = explain(on_a30(cut(1e8), link_gb_per_s=100.0))
    assert binds(free, "a") == {"capacity": True, "link": False}
    assert changed(free, "link").effect == "same"
    assert "link" not in binds(explain(on_a30(cut(1e8))), "a")
    assert "link" not in binds(explain(on_a30(cut(0.0), link_gb_per_s=1.0)), "a")


def test_a_link_binds_where_it_holds_a_latency_limit():
    explanation = explain(on_a30(cut(1e8, max_latency_ms=60.0), link_gb_per_s=1.0))
    held = binds(explanation, "a")
    assert held["link"] is True and held["max_latency_ms"] is True
    assert evidence(explanation, "a", "link").value_after == 40.0
    # 100 ms of transfer and 20 ms of work are too long for 75 ms, half of them and the work are not.
    assert (
        changed(explain(on_a30(cut(1e8, max_latency_ms=75.0), link_gb_per_s=1.0)), "link").value_after == 20.0
    )


def test_the_network_binds_where_the_stages_stand_on_two_nodes():
    whole = (("4g.24gb",),)
    stages = tuple(Stage(name, (Point(A30, "4g.24gb", 1, 40.0, 10.0),)) for name in ("s0", "s1"))
    model = PlanModel("a", (Variant("cut", stages, (0.0,), cut_bytes_per_request=(1e8,)),))
    fleet = tuple(FleetEntry(A30, layouts=whole, node=node) for node in ("x", "y"))
    request = PlanRequest(fleet, (model,), link_gb_per_s=100.0, network_gb_per_s=2.0)
    found = explain(request)
    assert binds(found, "a")["link"] is True
    assert changed(found, "link").value_after == 40.0
    # One more GPU of either node spares the network.
    assert [change.value_after for change in found.changes if change.what == "gpu" and change.new == 2.0] == [
        40.0,
        40.0,
    ]


def test_a_co_location_of_a_stage_is_told_of_its_model():
    other = simple("b", {"2g.12gb": 40.0})
    tied = on_a30(cut(0.0), other, count=2, colocations=(Colocation(("a/s0", "b")),))
    assert set(binds(explain(tied), "a")) == {"capacity", "colocation"} == set(binds(explain(tied), "b"))


def test_memory_binds_where_a_point_does_not_fit():
    points = (
        Point(A30, "4g.24gb", 1, 20.0, 5.0, memory_gib=30.0),
        Point(A30, "2g.12gb", 1, 5.0, 5.0, memory_gib=4.0),
    )
    model = whole_model("a", points)
    explanation = explain(on_a30(model))
    assert binds(explanation, "a") == {"capacity": True, "memory": True}
    assert evidence(explanation, "a", "memory").value_after == 20.0
    # Where all of it fits, whole slices make memory no limit at all.
    fits = explain(on_a30(simple("a", {"4g.24gb": 20.0}, memory_gib=20.0)))
    assert binds(fits, "a") == {"capacity": True}


def test_memory_of_co_tenants_binds():
    models = [simple(name, {"4g.24gb": 10.0}, memory_gib=14.0) for name in "ab"]
    explanation = explain(on_a30(*models, sharing="fractional"))
    assert binds(explanation, "a") == {"capacity": True, "memory": True}
    assert evidence(explanation, "a", "memory").value_after == pytest.approx(5.0, rel=1e-5)


def test_colocation_separation_and_the_tenants_of_a_slice_bind():
    models = [simple(name, {"4g.24gb": 10.0}) for name in "ab"]
    explanation = explain(on_a30(*models, count=2, colocations=(Colocation(("a", "b")),)))
    assert binds(explanation, "a") == binds(explanation, "b") == {"capacity": False, "colocation": True}
    dropped = evidence(explanation, "b", "colocation")
    assert (dropped.models, dropped.value_before, dropped.value_after) == (("a", "b"), 0.0, 10.0)
    pair = Colocation(("a", "b"), "soft", 2.0)
    found = explain(on_a30(*models, count=2, colocations=(pair,), objective=Objective(separation_weight=1.0)))
    dropped = evidence(found, "a", "colocation")
    # Each of the two GPUs tears the pair apart: 2 · 2 bytes.
    assert (dropped.value_before, dropped.value_after, dropped.effect) == (6.0, 10.0, "better")
    explanation = explain(on_a30(*models, sharing="fractional", max_tenants_per_slice=1))
    assert binds(explanation, "a") == {"capacity": True, "max_tenants_per_slice": True}
    dropped = evidence(explanation, "a", "max_tenants_per_slice")
    assert dropped.old == 1.0 and dropped.value_after == pytest.approx(5.0, rel=1e-5)


def test_a_cap_binds_the_model_and_capacity_the_next():
    alone = explain(on_a30(simple("a", {"4g.24gb": 40.0}, demand_rps=10.0, cap_at_demand=True)))
    assert binds(alone, "a") == {"capacity": False, "cap_at_demand": True}
    assert evidence(alone, "a", "cap_at_demand").value_after == 4.0
    capped = simple("a", {"2g.12gb": 10.0}, demand_rps=10.0, cap_at_demand=True)
    explanation = explain(on_a30(capped, simple("b", {"2g.12gb": 30.0}, demand_rps=10.0)))
    # Without its cap, a could have more only where b has nothing; b's level rises from 3 to 9.
    assert binds(explanation, "a") == {"capacity": False, "cap_at_demand": False}
    assert binds(explanation, "b") == {"capacity": True}
    more = changed(explanation, "gpu", new=2.0)
    assert (more.level, more.value_before, more.value_after) == (2, 3.0, 9.0)
    assert [(entry.model, entry.level) for entry in explanation.models] == [("a", 1), ("b", 2)]


def test_a_later_level_can_rise_with_the_first():
    found = explain(on_a30(simple("a", {"2g.12gb": 10.0}), simple("b", {"1g.6gb": 8.0})))
    # 2g for a, two 1g for b; with one more GPU three 2g and two 1g at best: 16 and 30.
    assert (changed(found, "gpu", new=2.0).level, changed(found, "gpu", new=2.0).value_after) == (1, 20.0)
    assert binds(found, "a") == binds(found, "b") == {"capacity": True}


def test_a_minimum_binds_and_its_model_may_not_be_the_one_that_gains():
    models = (simple("a", {"2g.12gb": 15.0}, min_throughput_rps=30.0), simple("b", {"2g.12gb": 10.0}))
    explanation = explain(on_a30(*models))
    dropped = evidence(explanation, "a", "min_throughput_rps")
    assert (dropped.effect, dropped.level) == ("better", 1)
    assert (dropped.value_before, dropped.value_after) == (0.0, 10.0)
    # 27 still takes both slices.
    lower = changed(explanation, "min_throughput_rps", "a")
    assert (lower.old, lower.new, lower.effect) == (30.0, pytest.approx(27.0), "same")


def test_a_model_without_an_admissible_point():
    model = simple("a", {"4g.24gb": 10.0}, latency_ms=22.0, max_latency_ms=20.5)
    explanation = explain(on_a30(model))
    assert binds(explanation, "a") == {"no_admissible_point": True, "max_latency_ms": True}
    assert changed(explanation, "max_latency_ms", "a").value_after == 10.0


def test_max_min_asks_nothing_for_the_better_served():
    models = (simple("a", {"2g.12gb": 10.0}), simple("b", {"2g.12gb": 30.0}))
    explanation = explain(on_a30(*models, objective=Objective("max_min")))
    assert binds(explanation, "a") == {"capacity": True}
    assert binds(explanation, "b") == {"objective": True}


def test_fewest_gpus():
    model = simple("a", {"4g.24gb": 10.0}, min_throughput_rps=15.0)
    explanation = explain(on_a30(model, count=2, objective=Objective("min_gpus")))
    assert binds(explanation, "a") == {"capacity": False, "min_throughput_rps": True}
    dropped = evidence(explanation, "a", "min_throughput_rps")
    assert (dropped.value_before, dropped.value_after, dropped.bound_after) == (2.0, 0.0, 0.0)
    assert changed(explanation, "min_throughput_rps", "a").effect == "same"
    fewer = changed(explanation, "gpu", new=1.0)
    assert (fewer.effect, fewer.value_after, fewer.proven) == ("infeasible", None, True)
    idle = explain(on_a30(model, count=3, objective=Objective("min_gpus")))
    assert changed(idle, "gpu", new=2.0).effect == "same"


def reason_of(found: PlanExplanation, *layout: str) -> LayoutReason:
    (one,) = [reason for reason in found.layouts if reason.layout == layout]
    return one


def test_layouts_without_use_or_beaten_slice_by_slice():
    explanation = explain(on_a30(simple("a", {"2g.12gb": 10.0})))
    assert reason_of(explanation, "4g.24gb").reason == "no_use"
    mixed = reason_of(explanation, "1g.6gb", "1g.6gb", "2g.12gb")
    assert (mixed.reason, mixed.dominated_by) == ("dominated", ("2g.12gb", "2g.12gb"))
    assert mixed.matching == (("2g.12gb", "2g.12gb"),)
    assert len(explanation.layouts) == 3


def test_layouts_are_tried_on_one_gpu():
    explanation = explain(on_a30(simple("a", {"1g.6gb": 3.0, "2g.12gb": 10.0, "4g.24gb": 15.0})))
    values = {("1g.6gb",) * 4: 12.0, ("1g.6gb", "1g.6gb", "2g.12gb"): 16.0, ("4g.24gb",): 15.0}
    for layout, value in values.items():
        reason = reason_of(explanation, *layout)
        assert reason.reason == "tried" and reason.trial is not None
        assert (reason.trial.effect, reason.trial.value_before) == ("worse", 20.0)
        assert reason.trial.value_after == reason.trial.bound_after == value


def test_a_layout_as_good_as_the_one_in_use():
    models = (simple("a", {"1g.6gb": 5.0}), simple("b", {"2g.12gb": 10.0, "4g.24gb": 10.0}))
    explanation = explain(on_a30(*models, count=2))
    layouts = {reason.layout: reason for reason in explanation.layouts}
    assert layouts[("4g.24gb",)].reason == "dominated"
    for reason in layouts.values():
        if reason.trial is not None and reason.trial.effect == "same":
            assert reason.trial.value_after == reason.trial.value_before


def test_the_price_of_each_step():
    whole = on_a30(*(simple(name, {"4g.24gb": 10.0}) for name in "ab"))
    steps = {step.step: step for step in explain(whole).steps}
    assert list(steps) == ["relaxed", "shared", "plan"]
    assert steps["relaxed"].bound == pytest.approx(5.0) and steps["relaxed"].value is None
    assert steps["shared"].value == pytest.approx(5.0, rel=1e-5)
    assert (steps["plan"].value, steps["plan"].loss, steps["plan"].proven) == (0.0, 1.0, True)
    shared = {step.step: step for step in explain(replace(whole, sharing="fractional")).steps}
    assert shared["plan"].value == pytest.approx(5.0, rel=1e-5)
    assert shared["plan"].loss == pytest.approx(0.0, abs=1e-5)
    assert shared["pooled"].value is None and shared["pooled"].bound == pytest.approx(5.0)
    assert (shared["whole_slices"].value, shared["whole_slices"].loss) == (0.0, 1.0)


@repeated("sharing", ["exclusive", "fractional"])
def test_one_more_gpu_is_worth_what_planning_with_it_gives(sharing):
    request = published(sharing=sharing)
    explanation = explain(request)
    for count in (1, 3):
        change = changed(explanation, "gpu", new=float(count))
        again = plan(published(count, sharing=sharing)).objective.sorted_normalised
        assert change.level is not None
        assert change.value_after == pytest.approx(again[change.level - 1], rel=1e-5, abs=1e-9)


def test_gpus_of_one_type_that_differ_are_told_apart():
    fleet = (FleetEntry(A30, layouts=(("4g.24gb",),)), FleetEntry(A30, id="mine"))
    explanation = explain(PlanRequest(fleet, (simple("a", {"2g.12gb": 10.0, "4g.24gb": 12.0}),)))
    after = {change.gpu_id: change.value_after for change in explanation.changes if change.new == 2.0}
    assert after == {"gpu0": 44.0, "mine": 52.0}


# Where it comes from and goes to


def test_only_plans_of_the_request_are_explained():
    request = published()
    with pytest.raises(InputFault, match="answers another request than the one to be explained"):
        explain_plan(replace(request, link_gb_per_s=1.0), plan(request))
    impossible = on_a30(simple("a", {"4g.24gb": 10.0}, min_throughput_rps=12.5))
    assert explain_plan(impossible, plan(impossible)) is None
    assert workflow.plan(impossible, explain=True).explanation is None


def test_an_explanation_is_written_and_read_field_for_field():
    request = on_a30(
        simple("a", {"1g.6gb": 3.0, "2g.12gb": 10.0}, max_latency_ms=20.0, min_throughput_rps=1.0),
        simple("b", {"2g.12gb": 10.0}),
        count=2,
        colocations=(Colocation(("a", "b")),),
    )
    outcome = workflow.plan(request, explain=True)
    assert outcome.explanation is not None
    text = write_text(outcome)
    assert read_text(text) == ("torchsplit.plan", outcome)
    written = json.loads(text)["explanation"]
    eased_limit = next(change for change in written["changes"] if change["what"] == "max_latency_ms")
    assert eased_limit["from"] == 20.0 and eased_limit["to"] == pytest.approx(22.0)
    assert "explanation" not in json.loads(write_text(workflow.plan(request)))
