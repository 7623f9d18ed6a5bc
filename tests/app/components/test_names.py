"""Names that the library's components would refuse as keys."""

from __future__ import annotations

from streamlit.testing.v1 import AppTest

from app.components.keys import component_key


def _drawn() -> None:
    from app.components.field_rows import Column, Row, field_rows
    from app.components.live_slider import live_slider
    from app.components.picture import picture
    from app.components.saving import saved

    live_slider("a", ["1", "2"], 0, key="demand my__model", on_move=lambda _place: None)
    rows = [Row("my__model", "my__model", {"weight": "1"})]
    field_rows("Models", (Column("weight", "weight"),), rows, key="fields a__b", on_edits=lambda _edits: None)
    picture("<b>x</b>", key="map of a__b")
    picture("<b>y</b>", key="map of a__c", on_place=lambda _place: None)
    with saved("Slices", "a__b", key="a__b"):
        pass


def test_a_name_with_two_underscores_is_a_name() -> None:
    page = AppTest.from_function(_drawn).run(timeout=60)
    assert not page.exception


def test_names_stay_apart() -> None:
    assert component_key("weight a") == "weight a"
    assert len({component_key(name) for name in ("a__b", "a_b", "a___b", "b__a")}) == 4
