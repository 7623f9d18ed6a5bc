"""Rows of fields without their component, which only a browser draws: what a page hands over, and edits of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import streamlit as st
from streamlit.testing.v1 import AppTest

from app.components.field_rows import Column, Edit, Row
from app.plans.inputs.fields import FACTORS
from torchsplit_core.pictures.numbers import exact

OnEdits = Callable[[Sequence[Edit]], None]


@dataclass
class Rows:
    """The rows of fields that a page drew last, by the table's label, and edits of them as the browser tells them."""

    drawn: dict[str, dict[str, Row]] = field(default_factory=dict)
    told: dict[str, OnEdits] = field(default_factory=dict)
    waiting: list[tuple[str, Edit]] = field(default_factory=list)
    native: bool = False

    def edit(self, page: AppTest, table: str, row: str, column: str, value: Any) -> AppTest:
        """Edit one field; the page runs again."""
        self.waiting.append((table, Edit(row, column, value)))
        # In the first run the edit comes when the table is drawn, in the second one the page is drawn with it.
        page.run()
        page.run()
        assert not page.exception and not self.waiting
        return page

    def draw(
        self, label: str, columns: Sequence[Column], rows: Sequence[Row], *, key: str,
        on_edits: OnEdits, **_: Any,
    ) -> None:  # fmt: skip
        """In place of the component."""
        self.drawn[label], self.told[label] = {row.id: row for row in rows}, on_edits
        mine = [edit for table, edit in self.waiting if table == label]
        self.waiting = [one for one in self.waiting if one[0] != label]
        if mine:
            on_edits(mine)
        for row in rows if self.native else ():
            for column, stops in row.stops.items():
                words = f"GPUs, {row.about}" if column == "count" else f"{row.about}, req/s"
                now = row.instead.get(column, row.values[column])
                _slider(words, row.id, column, stops, now, on_edits)
        first = next(iter(rows), None) if self.native and label == "Models" else None
        if first is not None and first.state != "gone":
            stops = [(step, exact(step)) for step in sorted({float(first.values["weight"]), *FACTORS})]
            _slider("Weight", first.id, "weight", stops, first.values["weight"], on_edits)


def _slider(
    label: str, row: str, column: str, stops: Sequence[tuple[float, str]], now: str, on_edits: OnEdits
) -> None:
    key, steps = f"native {column} {row}", [step for step, _ in stops]
    st.session_state[key] = steps[[text for _, text in stops].index(now)]
    st.select_slider(
        label, steps, format_func=exact, key=key,
        on_change=lambda: on_edits([Edit(row, column, st.session_state[key])]),
    )  # fmt: skip
