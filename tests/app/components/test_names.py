"""Names that the library's components would refuse as keys."""

import ast
from dataclasses import replace

import pytest
from streamlit.testing.v1 import AppTest

from app.components.keys import component_key
from app.plans.page import TAB, TITLES
from tests.support.app.graphs import encoder, stored, timed
from tests.support.app.page import put_plan
from tests.support.app.values import request
from tests.support.paths import ROOT
from torchsplit_core import workflow


def _drawn() -> None:
    from app.components.demand_bars import DemandBar, demand_bars
    from app.components.field_rows import Column, Row, field_rows
    from app.components.live_slider import live_slider
    from app.components.picture import picture
    from app.components.saving import exportable

    live_slider("a", ["1", "2"], 0, key="demand my__model", on_move=lambda _place: None)
    rows = [Row("my__model", "my__model", {"weight": "1"})]
    field_rows("Models", (Column("weight", "weight"),), rows, key="fields a__b", on_edits=lambda _edits: None)
    bars = [DemandBar("day", "07:00–22:00", 15.0, 3.0)]
    demand_bars("Demand", "my__model", bars, key="bars a__b", on_drawn=lambda _values: None)
    picture("<b>x</b>", key="map of a__b")
    picture("<b>y</b>", key="map of a__c", on_place=lambda _place: None)
    with exportable("Slices", "a__b", key="a__b"):
        pass


def test_a_name_with_two_underscores_is_a_name():
    page = AppTest.from_function(_drawn).run(timeout=60)
    assert not page.exception


def test_names_stay_apart():
    assert component_key("weight a") == "weight a"
    assert len({component_key(name) for name in ("a__b", "a_b", "a___b", "b__a")}) == 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["my__plan", "__"])
def test_a_scenario_and_its_models_are_drawn_under_such_names(name, workspace, page):
    asked = request()
    asked = replace(asked, models=tuple(replace(model, name=f"{model.name}__m") for model in asked.models))
    put_plan(workspace, asked, workflow.plan(asked), name)
    workspace.set_setting("scenario", name)
    opened = page("plan", workspace)
    for tab in TITLES:
        opened.session_state[TAB] = tab
        assert not opened.run().exception, tab
    page("present", workspace)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["my__m", "upload:a__b"])
def test_a_model_is_drawn_under_such_a_name(name, workspace, page):
    stored(workspace, encoder(2), timed(encoder(2), name=name), name)
    for one in ("graph", "profile"):
        page(one, workspace)


def test_every_component_with_a_key_of_names_takes_it_from_the_helper():
    """Where a component is mounted its key is fixed text or what `component_key` gave, here or where it is called."""
    found = []
    for path in sorted((ROOT / "app").rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef):
                found += [f"{path.relative_to(ROOT)}: {ast.unparse(key)}" for key in _bare_keys(function)]
    assert found == [
        "app/components/explorer/__init__.py: key"
    ]  # `mount` makes it, which also looks under it


def _bare_keys(function: ast.FunctionDef) -> list[ast.expr]:
    made = {
        ast.unparse(target)
        for line in ast.walk(function)
        if isinstance(line, ast.Assign) and "component_key(" in ast.unparse(line.value)
        for targets in line.targets
        for target in (targets.elts if isinstance(targets, ast.Tuple) else [targets])
    }
    return [
        word.value
        for call in ast.walk(function)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "_component()"
        for word in call.keywords
        if word.arg == "key"
        and not isinstance(word.value, ast.Constant)
        and not ast.unparse(word.value).startswith("component_key(")
        and ast.unparse(word.value) not in made
    ]
