"""The Compare tab: two scenarios in words, in a table and on both maps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from streamlit.testing.v1 import AppTest

from app.plan import compare as plan_compare
from tests.support.app.plan_page import said, tab
from tests.support.app.values import plan, request
from torchsplit_core.planning.comparison.compare import compare
from torchsplit_core.values import FleetEntry, PlannedModel
from torchsplit_core.workspace.store import Workspace

Open = Callable[..., AppTest]


@pytest.fixture
def two(filled: Workspace) -> Workspace:
    """The plan of "other" has the models on each other's slices, and bert half as fast."""
    base = plan()
    first, second = base.gpus[0].slices
    swapped = (replace(first, tenants=second.tenants), replace(second, tenants=first.tenants))
    models = (PlannedModel("bert", "whole", 200.0, 1.0, 80.0), base.models[1])
    asked = replace(request(), gpus=(FleetEntry("A100-80GB", count=1),))
    filled.put("plan_request", "other", asked)
    filled.put("plan", "other", replace(base, gpus=(replace(base.gpus[0], slices=swapped),), models=models))
    return filled


def test_one_scenario_alone_says_how_to_get_a_second(page: Open, filled: Workspace) -> None:
    assert "Duplicate this scenario" in said(tab(page("plan", filled), "Compare"))


def test_the_differences_are_named_from_the_other_to_this(page: Open, two: Workspace) -> None:
    text = said(tab(page("plan", two), "Compare"))
    assert "From other to review" in text
    for line in compare(two.get("plan", "other"), two.get("plan", "review")).lines:
        assert line in text
    assert "+100 %" in text and "-40" in text


def test_all_scenarios_stand_in_one_table(page: Open, two: Workspace) -> None:
    two.put("plan_request", "third", request())
    two.put("plan", "third", plan(status="feasible"))
    opened = tab(page("plan", two), "Compare")
    text = said(opened)
    for told in (
        ">scenario</th><th>review</th><th>third</th><th>other</th>",
        "gap 25",
        "bert, ×",
        "worst served, ×",
        "1 of 1",
    ):
        assert told in text, told
    opened.multiselect(key="compare-all review").set_value(["review", "other"]).run()
    assert "<th>third</th>" not in said(opened) and "<th>other</th>" in said(opened)


def test_both_maps_say_what_becomes_of_their_slices(two: Workspace) -> None:
    old, new = plan_compare.marks_of(compare(two.get("plan", "other"), two.get("plan", "review")))
    assert old == {("gpu0", 0): "drain", ("gpu0", 4): "drain"}
    assert new == {("gpu0", 0): "other model", ("gpu0", 4): "other model"}
    base = plan()
    fewer = replace(base, gpus=(replace(base.gpus[0], slices=base.gpus[0].slices[:1]),))
    assert plan_compare.marks_of(compare(base, fewer)) == ({("gpu0", 4): "goes"}, {})
    assert plan_compare.marks_of(compare(fewer, base)) == ({}, {("gpu0", 4): "new"})


def test_the_same_plan_twice_changes_nothing(page: Open, filled: Workspace) -> None:
    filled.put("plan_request", "copy", request())
    filled.put("plan", "copy", plan())
    assert "Nothing changes" in said(tab(page("plan", filled), "Compare"))
    assert plan_compare.marks_of(compare(plan(), plan())) == ({}, {})
