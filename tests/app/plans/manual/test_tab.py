"""The By hand tab: rows to GPUs and back, every fault said, a legal one beside the best plan and kept."""

from dataclasses import replace
from functools import partial
from xml.etree import ElementTree

import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from app.plans.manual import slice_editor
from app.plans.manual import tab as manual_tab
from app.plans.manual.edit_state import EditState
from app.session.result_kind import SCENARIO
from tests.support.app import plan_page
from tests.support.app.page import button, field, press, said
from tests.support.app.values import request
from torchsplit_core import workflow
from torchsplit_core.pictures.numbers import THIN
from torchsplit_core.planning.manual.evaluate import ManualGpu, ManualSlice, ManualTenant, evaluate, from_plan
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import FleetEntry
from torchsplit_core.workspace.store import Workspace

pytestmark = pytest.mark.slow
tab = partial(plan_page.tab, name="By hand")


def test_the_table_is_the_plan_and_back():
    plan = workflow.plan(request())
    rows = manual_tab.rows_of(from_plan(plan))
    assert list(rows.columns) == list(manual_tab.COLUMNS)
    assert sorted(rows["model"]) == ["bert", "ocr"] and set(rows["GPU"]) == {"gpu0"}
    evaluation = evaluate(request(), manual_tab.gpus_of(rows), plan)
    assert evaluation.outcome is not None and evaluation.outcome.objective.value == plan.objective.value


def test_rows_of_one_slice_share_it_and_unfinished_rows_wait():
    rows = [
        ("gpu0", "4g.40gb", 0, "bert", None, None, 0.5), ("gpu0", "4g.40gb", 0, "ocr", "whole", 8, None),
        ("gpu0", "3g.40gb", 4, None, None, None, None), ("gpu1", None, None, "bert", None, None, None),
    ]  # fmt: skip
    table = pd.DataFrame(rows, columns=list(manual_tab.COLUMNS))
    shared = (ManualTenant("bert", share=0.5), ManualTenant("ocr", stage="whole", batch_size=8))
    assert manual_tab.gpus_of(table) == (
        ManualGpu("gpu0", (ManualSlice("4g.40gb", 0, shared), ManualSlice("3g.40gb", 4, ()))),
    )


def test_the_plan_itself_is_legal_and_as_good_and_can_be_kept(page, solved):
    opened = tab(page("plan", solved))
    assert "The best plan against yours: as good for every model" in said(opened)
    press(opened, "Keep as a scenario")
    assert set(SCENARIO.names(solved)) == {"review", "review by hand"}
    assert (
        solved.get("plan", "review by hand").status == "feasible" or solved.get("plan", "review by hand").gpus
    )


def test_every_fault_is_said_at_once(page, solved):
    first = ManualSlice("4g.40gb", 4, (ManualTenant("bert"),))
    wrong = (ManualGpu("gpu0", (first, ManualSlice("3g.40gb", 4, (ManualTenant("ocr"),)))),)
    opened = page("plan", solved)
    keep(opened, solved, EditState((wrong,), wrong))
    tab(opened)
    faults = evaluate(request(), wrong).faults
    assert len(opened.error) == len(faults) >= 1
    assert all(str(fault) in said(opened) for fault in faults) and "legal, checked" not in said(opened)


def test_without_a_plan_there_is_no_ground_to_start_from(page, workspace):
    workspace.put("plan_request", "review", request())
    assert "Here you place slices and models yourself" in said(tab(page("plan", workspace)))


def keep(page: AppTest, workspace: Workspace, draft: EditState) -> None:
    """Make this the session's draft, as if it had come to it by moves."""
    key = f"by hand {workspace.id} review {request_hash(workspace.get('plan_request', 'review'))[:12]}"
    page.session_state[key] = draft


def chosen(page: AppTest, workspace: Workspace, place: str) -> AppTest:
    """The By hand tab with a place of the map chosen."""
    start = from_plan(workspace.get("plan", "review"))
    keep(page, workspace, EditState((start,), start, place=place))
    return tab(page)


def shown(pictures: list[str]) -> list[str]:
    """Titles of what can be chosen on the map drawn last, from left to right."""
    root = ElementTree.fromstring(f"<root>{pictures[-1]}</root>")
    return [
        str(next(element.text for element in node.iter() if element.tag.endswith("title")))
        for node in root.iter()
        if node.get("data-place")
    ]


@pytest.fixture
def pictures(monkeypatch) -> list[str]:
    """The markup of every picture the tab draws."""
    found = []
    monkeypatch.setattr(manual_tab, "picture", lambda markup, **_: found.append(markup))
    return found


def test_a_slice_is_changed_on_the_map_and_the_change_undone(page, solved, pictures):
    opened = chosen(page("plan", solved), solved, "4 gpu0")
    assert "**gpu0**, 3g.40gb in memory slots 4 to 7" in said(opened)
    assert field(opened, "selectbox", "Slice here").value == ("3g.40gb", 4)
    field(opened, "selectbox", "Model on it").select("").run()
    assert any(title.startswith("3g.40gb at slot 4: free") for title in shown(pictures))
    field(opened, "selectbox", "Slice here").select(("2g.20gb", 4)).run()
    assert any(title.startswith("2g.20gb at slot 4: free") for title in shown(pictures))
    field(opened, "selectbox", "Slice here").select(slice_editor.NO_SLICE).run()
    assert "no slice at slot 4" in said(opened) and not any("2g.20gb" in title for title in shown(pictures))
    for _ in range(3):
        press(opened, "Undo")
    assert field(opened, "selectbox", "Model on it").value in ("bert", "ocr")
    assert button(opened, "Undo").disabled


def test_only_models_that_run_on_the_slice_are_offered_and_the_batch_can_be_set(page, solved, pictures):
    opened = chosen(page("plan", solved), solved, "0 gpu0")
    model = str(field(opened, "selectbox", "Model on it").value)
    assert set(field(opened, "selectbox", "Model on it").options) == {"free", "bert", "ocr"}
    batch = field(opened, "selectbox", f"Batch of {model}")
    assert batch.options == ["the best", "8"] and batch.value == 8
    batch.select(0).run()
    assert field(opened, "selectbox", f"Batch of {model}").value == 0 and "legal, checked" in said(opened)
    # A slice without a point of any model: the model that was there leaves it.
    field(opened, "selectbox", "Slice here").select(("2g.20gb", 0)).run()
    assert field(opened, "selectbox", "Model on it").options == ["free"] and not opened.exception


def test_equal_gpus_are_changed_together_or_alone(page, workspace, pictures):
    asked = replace(request(), gpus=(FleetEntry("A100-80GB", count=3),))
    workspace.put("plan_request", "review", asked)
    workspace.put("plan", "review", workflow.plan(asked))
    start = (ManualGpu("gpu0"), ManualGpu("gpu1"), ManualGpu("gpu2", (ManualSlice("7g.80gb", 0),)))
    opened = page("plan", workspace)
    keep(opened, workspace, EditState((start,), start, place="0 gpu0"))
    tab(opened)
    scope = field(opened, "radio", "Change")
    assert scope.options == ["this GPU", "all 2 alike"]
    scope.set_value("all").run()
    field(opened, "selectbox", "Slice here").select(("4g.40gb", 0)).run()
    assert sum(title.startswith("4g.40gb at slot 0") for title in shown(pictures)) == 1  # one card of two
    assert "gpu0 to gpu1" in pictures[-1] and "2 GPUs alike" in pictures[-1]
    field(opened, "radio", "Change").set_value("one").run()
    field(opened, "selectbox", "Model on it").select("bert").run()
    assert "GPUs alike" not in pictures[-1] and not opened.exception


def test_shared_slices_take_several_models_in_equal_shares(page, workspace, pictures):
    asked = replace(request(), sharing="fractional")
    workspace.put("plan_request", "review", asked)
    workspace.put("plan", "review", workflow.plan(asked))
    start = (ManualGpu("gpu0", (ManualSlice("4g.40gb", 0, (ManualTenant("bert", share=1.0),)),)),)
    opened = page("plan", workspace)
    keep(opened, workspace, EditState((start,), start, place="0 gpu0"))
    tab(opened)
    field(opened, "multiselect", "Models on it").set_value(["bert", "ocr"]).run()
    assert not opened.exception and pictures[-1].count(f"50{THIN}% of the slice's time") == 2


def test_a_tenant_that_cannot_run_is_drawn_without_figures(page, solved, pictures):
    wrong = (ManualGpu("gpu0", (ManualSlice("1g.10gb", 0, (ManualTenant("bert"),)),)),)
    opened = page("plan", solved)
    keep(opened, solved, EditState((wrong,), wrong))
    tab(opened)
    assert len(opened.error) == 1 and "bert\n1g.10gb at slot 0\nnot evaluated" in shown(pictures)[0]
    assert "req/s" not in pictures[-1]


def test_a_place_that_is_not_there_any_more_asks_for_another(page, solved, pictures):
    for place in ("", "0 gpu9", "99 gpu0", "x gpu0"):
        opened = chosen(page("plan", solved), solved, place)
        assert "Choose a slice or uncut slots on the map" in said(opened)
