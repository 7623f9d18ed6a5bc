"""The Compare tab: two scenarios in words, in a table and on both maps."""

from dataclasses import replace
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from app.plans import compare as plan_compare
from app.plans.scenario_table import CHOSEN, LEVELS, has_plan, list_scenarios, load_summaries
from app.plans.verdict import verdict_of
from app.session import scenario
from app.session.result_kind import SCENARIO
from tests.support.app.page import put_plan, said
from tests.support.app.plan_page import tab
from tests.support.app.values import plan, request
from torchsplit_core.planning.comparison.plan_comparison import compare
from torchsplit_core.values import FleetEntry, PlannedModel
from torchsplit_core.workspace.store import Workspace


@pytest.fixture
def two(filled) -> Workspace:
    """The plan of "other" has the models on each other's slices, and bert half as fast."""
    base = plan()
    first, second = base.gpus[0].slices
    swapped = (replace(first, tenants=second.tenants), replace(second, tenants=first.tenants))
    models = (PlannedModel("bert", "whole", 200.0, 1.0, 80.0), base.models[1])
    asked = replace(request(), gpus=(FleetEntry("A100-80GB", count=1),))
    put_plan(
        filled, asked, replace(base, gpus=(replace(base.gpus[0], slices=swapped),), models=models), "other"
    )
    return filled


def test_one_scenario_alone_says_how_to_get_a_second(page, filled):
    assert "Duplicate this scenario" in said(tab(page("plan", filled), "Compare"))


def test_the_differences_are_named_from_the_other_to_this(page, two):
    text = said(tab(page("plan", two), "Compare"))
    assert "From other to review" in text
    for line in compare(two.get("plan", "other"), two.get("plan", "review")).lines:
        assert line in text
    assert "+100 %" in text and "-40" in text


def scenarios(opened: AppTest) -> Any:
    """The table of all scenarios."""
    return next(element.value for element in opened.dataframe if "search" in element.value.columns)


@pytest.fixture
def four(two) -> Workspace:
    """The third is not proven, the newest is not planned."""
    put_plan(two, request(), plan(status="feasible"), "third")
    two.put("plan_request", "wish", request())
    SCENARIO.tag(two, "third", ["H100", "later"])
    SCENARIO.tag(two, "review", ["later"])
    return two


def test_all_scenarios_stand_in_one_table_with_their_figures_and_verdicts(page, four):
    found = scenarios(tab(page("plan", four), "Compare"))
    assert list(found["scenario"]) == ["review", "wish", "third", "other"]
    assert list(found["search"].fillna("")) == ["proven optimal", "", "gap 25\u202f%", "proven optimal"]
    stored = [four.get("plan", name) for name in ("review", "third", "other")]
    known = found[found["scenario"] != "wish"]
    assert list(known["worst served, ×"]) == [min(m.normalised for m in one.models) for one in stored]
    assert list(known["req/s"]) == [sum(m.throughput_rps for m in one.models) for one in stored]
    verdicts = [
        verdict_of(four.get("plan_request", name), four.get("plan", name)) for name in known["scenario"]
    ]
    assert list(known["in words"]) == [verdict.sentence for verdict in verdicts]
    assert list(known["verdict"]) == [LEVELS[verdict.level] for verdict in verdicts]
    wish = found[found["scenario"] == "wish"].iloc[0]
    assert wish["verdict"] == "not planned" and found["req/s"].isna().tolist() == [False, True, False, False]
    assert [list(one) for one in found["tags"]] == [["later"], [], ["H100", "later"], []]


def test_the_table_is_narrowed_by_name_and_tags_and_scenarios_are_tagged(page, four):
    opened = tab(page("plan", four), "Compare")
    opened.multiselect(key="compare-tags").set_value(["later"]).run()
    assert list(scenarios(opened)["scenario"]) == ["review", "third"]
    opened.text_input(key="compare-find").set_value("THI").run()
    assert list(scenarios(opened)["scenario"]) == ["third"]
    opened.text_input(key="compare-find").set_value("nothing").run()
    assert "No scenario is like that." in said(opened)
    opened.multiselect(key="compare-own-tags review").set_value(["new"]).run()
    assert SCENARIO.tags(four)["review"] == ("new",)


def test_scenarios_chosen_in_the_table_are_compared(page, four):
    opened = page("plan", four)
    opened.session_state[CHOSEN] = ["other", "third"]
    text = said(tab(opened, "Compare"))
    # By model stand both and no other; the maps lead from the older to the newer.
    assert ">scenario</th><th>third</th><th>other</th>" in text and "From other to third" in text
    for told in ("gap 25", "bert, ×", "worst served, ×", "1 of 1"):
        assert told in text, told
    opened.button(key="compare-swap").click().run()
    assert "From third to other" in said(opened)
    opened.selectbox(key="compare-from").set_value("other").run()
    opened.selectbox(key="compare-to").set_value("review").run()
    assert "From other to review" in said(opened)


def test_tags_go_with_a_scenario_that_is_renamed_copied_and_deleted(page, four):
    page("plan", four)
    scenario.save_as(four, "third", "copy", keep=True)
    scenario.save_as(four, "third", "fourth", keep=False)
    assert SCENARIO.tags(four) == {
        "review": ("later",), "copy": ("H100", "later"), "fourth": ("H100", "later"),
    }  # fmt: skip
    scenario.delete(four, "fourth")
    assert "fourth" not in SCENARIO.tags(four)
    assert scenario.undelete(four) == "fourth" and SCENARIO.tags(four)["fourth"] == ("H100", "later")


def test_thousands_of_scenarios_are_read_a_moment_at_a_time(two):
    """Each run reads one at least, those that are in sight first, and none twice."""
    content = two.get_bytes("plan", "other")
    two.put_all("plan", [(f"copy {number}", content + b" " * number) for number in range(5)])
    found = list_scenarios(two, "review")
    assert found[0].name == "review" and len(found) == 7
    sight = [one for one in found if one.name == "copy 0"]
    left = load_summaries(two, found, 0.0, sight)
    assert has_plan(sight[0]) and left > 0 and sum(map(has_plan, found)) <= 2
    runs = 0
    while left:
        before, left, runs = left, load_summaries(two, found, 0.0, sight), runs + 1
        assert left < before
    assert runs and all(map(has_plan, found))


def test_both_maps_say_what_becomes_of_their_slices(two):
    old, new = plan_compare.map_marks(compare(two.get("plan", "other"), two.get("plan", "review")))
    assert old == {("gpu0", 0): "drain", ("gpu0", 4): "drain"}
    assert new == {("gpu0", 0): "other model", ("gpu0", 4): "other model"}
    base = plan()
    fewer = replace(base, gpus=(replace(base.gpus[0], slices=base.gpus[0].slices[:1]),))
    assert plan_compare.map_marks(compare(base, fewer)) == ({("gpu0", 4): "goes"}, {})
    assert plan_compare.map_marks(compare(fewer, base)) == ({}, {("gpu0", 4): "new"})


def test_costs_stand_beside_each_other_where_one_is_known():
    priced = replace(plan(), cost_per_hour=2.5, cost_per_million_requests=0.25)
    table = plan_compare.comparison_table([("a", None, priced), ("b", None, plan())])
    for label, figure in (("cost an hour", "2.5"), ("cost per million requests", "0.25")):
        row = table.split(f">{label}<", 1)[1].split("</tr>", 1)[0]
        assert f">{figure}<" in row and ">n/a<" in row
    assert "cost" not in plan_compare.comparison_table([("a", None, plan()), ("b", None, plan())])


def test_the_same_plan_twice_changes_nothing(page, filled):
    put_plan(filled, request(), plan(), "copy")
    assert "Nothing changes" in said(tab(page("plan", filled), "Compare"))
    assert plan_compare.map_marks(compare(plan(), plan())) == ({}, {})
