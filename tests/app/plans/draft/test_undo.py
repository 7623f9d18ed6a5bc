"""Every edit of a draft is stored as it is made, and can be taken back; so can that the draft was discarded."""

from __future__ import annotations

from dataclasses import replace

import pytest
from streamlit.testing.v1 import AppTest

from app.plans import page as plan_page
from app.session import draft as drafts
from tests.support.app.page import field, press_key, said
from tests.support.app.values import request
from torchsplit_core.values import FleetEntry
from torchsplit_core.workspace.drafts import DraftStore, StoredDraft
from torchsplit_core.workspace.store import Workspace

pytestmark = pytest.mark.usefixtures("native_sliders")


def move(page: AppTest, label: str, value: float) -> AppTest:
    field(page, "select_slider", label).set_value(value).run()
    return page


def counts(workspace: Workspace) -> list[int]:
    return [one.request.gpus[0].count for one in DraftStore(workspace, "review").all()]


def test_an_edit_is_stored_before_the_page_is_drawn(page, solved, monkeypatch):
    opened = page("plan", solved)
    monkeypatch.setattr(plan_page, "plan_draft", lambda *_: 1 / 0)
    move(opened, "GPUs", 2)
    assert opened.exception and counts(solved) == [2]


def test_moves_of_one_slider_are_one_step_and_each_field_is_its_own(page, solved):
    opened = page("plan", solved)
    assert opened.button(key="draft-undo").disabled
    move(move(opened, "GPUs", 2), "GPUs", 3)
    move(opened, "bert", 400.0)
    press_key(opened, "draft-undo")
    assert "A100-80GB 1 → 3" in said(opened) and "demand of bert" not in said(opened)
    press_key(opened, "draft-undo")
    assert "No draft." in said(opened) and counts(solved) == []
    assert opened.button(key="draft-undo").disabled


def test_moves_with_a_rest_between_are_steps_of_their_own(page, solved, monkeypatch):
    monkeypatch.setattr(drafts, "ONE_STEP_S", 0.0)
    opened = move(move(page("plan", solved), "GPUs", 2), "GPUs", 3)
    press_key(opened, "draft-undo")
    assert counts(solved) == [2] and "A100-80GB 1 → 2" in said(opened)


def test_a_discarded_draft_comes_back(page, solved):
    opened = move(page("plan", solved), "GPUs", 2)
    press_key(opened, "draft-discard")
    assert counts(solved) == []
    press_key(opened, "draft-undo")
    assert counts(solved) == [2] and "A100-80GB 1 → 2" in said(opened)


def test_what_was_kept_is_history_s_to_undo(page, solved):
    opened = move(page("plan", solved), "GPUs", 2)
    press_key(opened, "draft-keep")
    assert opened.button(key="draft-undo").disabled


def test_a_draft_of_somebody_else_is_named_and_copied(page, solved):
    theirs = replace(request(), gpus=(FleetEntry("A100-80GB", count=4),))
    DraftStore(solved, "review").save(
        "0123456789abcdef", StoredDraft("x", theirs, owner="Ana *M*", edited=1e12)
    )
    opened = page("plan", solved)
    assert "Ana *M* has a draft, edited 1 minute ago." in said(opened)
    press_key(opened, "draft-copy")
    assert "A100-80GB 1 → 4" in said(opened) and sorted(counts(solved)) == [4, 4]


def test_an_edit_of_a_scenario_that_was_deleted_elsewhere_is_not_the_next_one_s(page, solved):
    opened = page("plan", solved)
    solved.put("plan_request", "left", request())
    for kind in ("plan_request", "plan"):
        solved.remove(kind, "review")
    move(opened, "GPUs", 2)
    assert not opened.exception and DraftStore(solved, "review").all() == ()
    assert "There is no scenario 'review'" in "".join(str(one.value) for one in opened.error).replace(
        "\\", ""
    )
