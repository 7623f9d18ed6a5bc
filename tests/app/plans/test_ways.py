"""Ways to run: which variants of a model a plan may use, edited on the page and kept by everything else."""

from dataclasses import replace

import pytest

from app.components.field_rows import Edit
from app.plans import model_table, report
from app.plans.draft import quick_plan
from app.plans.inputs import fleet, models
from app.plans.sweep import formatting
from tests.support.app.page import field, press, put_plan
from tests.support.app.values import cuts, plan, point, profile, request
from tests.support.planning.edits import with_allowed_variants, with_model
from torchsplit_core.jobs.job_kinds import EXPLAIN, RequestParameters
from torchsplit_core.pictures import numbers
from torchsplit_core.planning import plan as solve
from torchsplit_core.planning.request import edit
from torchsplit_core.values import Colocation, FleetEntry, InputFault, PlanRequest, Relaxation, Stage, Variant
from torchsplit_core.workspace.plan_cache.cache import PlanCache
from torchsplit_core.workspace.store import Workspace


def with_a_cut(**allowed: bool) -> PlanRequest:
    """The request with a second way to run bert: in two stages on slices of 3g."""
    bert, _ocr = request().models
    cut = Variant(
        "cut1",
        (
            Stage("cut1.1of2", (point("3g.40gb", 900.0, "estimated"),)),
            Stage("cut1.2of2", (point("4g.40gb", 900.0, "estimated"),)),
        ),
        (1.2e6,),
    )
    ways = tuple(replace(way, allowed=allowed.get(way.name, True)) for way in (*bert.variants, cut))
    return with_model(request(), 0, variants=ways)


def flags(asked: PlanRequest) -> list[bool]:
    return [variant.allowed for variant in asked.models[0].variants]


@pytest.fixture
def stored(workspace) -> Workspace:
    put_plan(workspace, with_a_cut(), plan(with_a_cut()))
    return workspace


def test_one_is_taken_out_with_keep_and_comes_back(page, stored, started, rows):
    opened = page("plan", stored)
    bert = rows.drawn["Models"]["bert"]
    assert bert.values["ways"] == ["whole", "cut1"]
    assert [text.replace(numbers.THIN, " ") for _, text in bert.options["ways"]] == [
        "whole", "cut1: 2 stages, 1.2 MB across cuts",
    ]  # fmt: skip
    assert "ways" not in rows.drawn["Models"]["ocr"].values
    rows.edit(opened, "Models", "bert", "ways", ["whole"])
    # As all edits it is in the draft until that is kept.
    assert flags(stored.get("plan_request", "review")) == [True, True]
    assert rows.drawn["Models"]["bert"].before == {"ways": "whole, cut1"}
    press(opened, "Keep and prove")
    asked = stored.get("plan_request", "review")
    assert asked == with_a_cut(cut1=False) and started == [(EXPLAIN, RequestParameters("review"))]
    rows.edit(opened, "Models", "bert", "ways", ["whole", "cut1"])
    press(opened, "Keep and prove")
    assert stored.get("plan_request", "review") == with_a_cut()


@pytest.mark.slow
def test_link_and_network_are_fields_of_the_draft(page, stored, started, rows):
    opened = page("plan", stored)
    assert rows.drawn["Links"]["links"].values == {"link_gb_per_s": "", "network_gb_per_s": ""}
    rows.edit(opened, "Links", "links", "link_gb_per_s", "12")
    rows.edit(opened, "Links", "links", "network_gb_per_s", "1.5")
    assert any("network none → 1.5 GB/s" in element.proto.body for element in opened.get("html"))
    press(opened, "Keep and prove")
    asked = stored.get("plan_request", "review")
    assert asked == replace(with_a_cut(), link_gb_per_s=12.0, network_gb_per_s=1.5) and len(started) == 1
    # The fields show what is stored, and an empty one takes it away.
    opened = page("plan", stored)
    assert rows.drawn["Links"]["links"].values == {"link_gb_per_s": "12", "network_gb_per_s": "1.5"}
    rows.edit(opened, "Links", "links", "network_gb_per_s", "")
    press(opened, "Keep and prove")
    assert stored.get("plan_request", "review") == replace(with_a_cut(), link_gb_per_s=12.0)


def test_a_link_of_no_speed_is_one_message_and_not_in_the_draft(page, stored, rows):
    opened = rows.edit(page("plan", stored), "Links", "links", "link_gb_per_s", "0")
    shown = rows.drawn["Links"]["links"]
    assert "not above 0" in shown.faults["link_gb_per_s"] and shown.values["link_gb_per_s"] == "0"
    assert any("not above 0" in element.proto.body for element in opened.get("html"))
    assert opened.button(key="draft-keep").disabled


def test_a_cut_model_says_what_crosses_its_cuts_and_that_it_travels_free(page, stored):
    cut = solve(with_a_cut(whole=False))
    assert any("transfers between stages count as free" in warning for warning in cut.warnings)
    (bert,) = [model for model in cut.models if model.name == "bert"]
    assert bert.bytes_across_cuts_per_s
    told = model_table.models_table(cut, with_a_cut(), {}).replace(numbers.THIN, " ")
    across = numbers.size(bert.bytes_across_cuts_per_s).replace(numbers.THIN, " ")
    assert f"<td>cut1, {across}/s across its cuts</td>" in told and told.count("across its cuts") == 1
    assert "runs as" in told
    put_plan(stored, with_a_cut(whole=False), cut)
    opened = page("plan", stored)
    shown = [one.value for one in (*opened.warning, *opened.caption, *opened.markdown)]
    assert any("transfers between stages count as free" in text for text in shown)


def test_pairs_offer_stages_and_keep_them(page, stored, started, rows):
    pair = Colocation(("bert/cut1.1of2", "bert/cut1.2of2"), "soft")
    asked = replace(with_a_cut(), colocations=(pair,))
    stored.put("plan_request", "review", asked)
    opened = page("plan", stored)
    shown = rows.drawn["Together on one GPU"]["0"].values
    assert (shown["first"], shown["second"], shown["mode"]) == (*pair.models, "soft")
    # They stand as they are: there is no draft, and Plan plans what is stored.
    assert not [button for button in opened.button if button.key == "draft-keep"]
    press(opened, "Plan")
    assert stored.get("plan_request", "review") == asked
    assert models.apply_edit(asked, asked, Edit("ocr", "weight", "2")).colocations == (pair,)
    assert models.apply_edit(asked, asked, Edit("bert", "remove", True)).colocations == ()


def test_a_model_that_may_not_run_at_all_is_one_message_and_nothing_is_stored(page, stored, started, rows):
    opened = rows.edit(page("plan", stored), "Models", "bert", "ways", [])
    assert "no variant of" in rows.drawn["Models"]["bert"].faults["ways"]
    assert any("no variant of" in element.proto.body for element in opened.get("html"))
    assert stored.get("plan_request", "review") == with_a_cut() and not started


def test_where_no_model_has_a_choice_there_is_none(page, filled, rows):
    page("plan", filled)
    assert rows.drawn["Models"] and not any("ways" in one.values for one in rows.drawn["Models"].values())


@pytest.mark.usefixtures("native_sliders")
def test_sliders_keep_what_is_not_allowed(page, stored, started):
    stored.put("plan_request", "review", with_a_cut(cut1=False))
    opened = page("plan", stored)
    slider = field(opened, "select_slider", "bert, req/s")
    slider.set_value(400.0).run()
    press(opened, "Keep and prove")
    asked = stored.get("plan_request", "review")
    assert asked.models[0].demand_rps == 400.0 and flags(asked) == [True, False]
    more = replace(with_a_cut(cut1=False), gpus=(FleetEntry("A100-80GB", count=2),))
    tried = quick_plan.plan_quickly(PlanCache(stored), more)
    assert tried.outcome is not None and tried.outcome.models[0].variant == "whole"
    assert (
        quick_plan.plan_quickly(PlanCache(stored), replace(more, models=with_a_cut().models)).outcome
        is not None
    )


def test_a_model_without_an_allowed_variant_is_refused():
    with pytest.raises(InputFault, match="no variant of whole, cut1 is allowed"):
        edit.validated_request(with_a_cut(whole=False, cut1=False))


def test_other_edits_keep_it():
    asked = with_a_cut(cut1=False)
    for edited in (
        models.apply_edit(asked, asked, Edit("bert", "weight", "2")),
        fleet.apply_edit(asked, asked, Edit("0", "count", "2")),
        edit.with_points(replace(asked, gpus=(FleetEntry("H100-SXM5-80GB"),)), {"bert": profile()}, [cuts()]),
        edit.with_relaxation(asked, (Relaxation("bert", "max_latency_ms", 80.0, 90.0),)),
    ):
        assert flags(edited) == [True, False]


def test_a_cut_offered_again_stays_out_and_another_of_its_name_comes_in():
    once = edit.with_cuts(request(), profile(), cuts())
    out = with_allowed_variants(once, {"bert": ["whole"]})
    assert flags(out) == [True, False]
    assert edit.with_cuts(out, profile(), cuts()) == out
    other = replace(cuts(), candidates=(replace(cuts().candidates[0], cut_bytes=(65,)),))
    assert flags(edit.with_cuts(out, profile(), other)) == [True, True]


def test_what_is_not_allowed_is_not_behind_a_plan():
    asked = with_a_cut(cut1=False)
    ocr = replace(asked.models[1], variants=asked.models[0].variants[:1])
    measured = replace(asked, models=(asked.models[0], ocr))
    assert formatting.basis_badge(measured).text == "all 2 profiles measured"
    allowed = with_allowed_variants(measured, {"bert": ["whole", "cut1"]})
    assert formatting.basis_badge(allowed).text.startswith("1 of 2")
    text = report.report("r", measured, plan(measured), {})
    assert "Of the points behind it, 4 measured." in text
    none_whole = with_allowed_variants(measured, {"bert": ["cut1"], "ocr": ["whole"]})
    unused = replace(plan(none_whole), gpus=())
    assert "<figcaption>bert</figcaption>" not in report.report("r", none_whole, unused, {})
    assert "<figcaption>bert</figcaption>" in report.report("r", measured, unused, {})
