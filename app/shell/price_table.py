"""The workspace's table of prices an hour: edited, dated, imported and exported; empty at first."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import streamlit as st

from app.session.workspace import read
from app.shell import frame, widgets
from torchsplit_core.hardware import catalogue, without_mig
from torchsplit_core.pictures.numbers import escape_markdown
from torchsplit_core.planning.prices.price_table import OLD_DAYS, check_prices, today
from torchsplit_core.tables.prices.price_csv import read_price_csv, write_price_csv
from torchsplit_core.tables.sheet import decode
from torchsplit_core.values import InputFault
from torchsplit_core.values.plan.prices import GpuPrice, PriceTable, price_date
from torchsplit_core.workspace.named_results import PRICES
from torchsplit_core.workspace.store import Workspace
from torchsplit_core.workspace.untrusted_files import read_contract

TYPE, PRICE, DATE, SOURCE, EXAMPLE = "GPU type", "price an hour", "as of", "source or note", "example"
ABOUT = (
    "Prices are used for GPUs that have none of their own. A row ticked as an example is used for nothing until you "
    "edit or untick it."
)
EXAMPLE_NOTE = "an example: nobody's price"


def stored_prices(workspace: Workspace) -> PriceTable | None:
    """The table of the workspace; None as long as there is none."""
    table: PriceTable | None = read(workspace, PRICES, PRICES)
    return table


def example_table(types: Sequence[str]) -> PriceTable:
    """What stands where there is no table: one row for the first of these types, which nothing uses."""
    now = datetime.datetime.now(datetime.UTC)
    return PriceTable("EUR", (GpuPrice(types[0], 1.0, now.date().isoformat(), EXAMPLE_NOTE, True),))


def render(workspace: Workspace, table: PriceTable | None, types: Sequence[str] = ("A100-80GB",)) -> None:
    """The stored table as fields; `types`: those to begin with."""
    shown = table or example_table(types)
    st.caption(ABOUT if table is not None else f"There are no prices yet. {ABOUT}")
    turn = st.session_state.setdefault("price-turn", 0)
    currency = st.text_input("Currency", shown.currency, key=f"price-currency {turn}", max_chars=20)
    known = [
        *dict.fromkeys([*types, *catalogue(), *without_mig(), *(price.gpu_type for price in shown.prices)])
    ]
    edited = st.data_editor(
        pd.DataFrame(rows_of(shown), columns=[TYPE, PRICE, DATE, SOURCE, EXAMPLE]),
        key=f"price-rows {turn}", num_rows="dynamic", hide_index=True, width="stretch",
        column_config={
            TYPE: st.column_config.SelectboxColumn(options=known),
            PRICE: st.column_config.NumberColumn(min_value=0.0, format="%.6g"),
            DATE: st.column_config.DateColumn(format="YYYY-MM-DD"),
            EXAMPLE: st.column_config.CheckboxColumn(default=False),
        },
    )  # fmt: skip
    with st.container(horizontal=True), frame.fault_boundary():
        if st.button("Save prices", key="price-save"):
            rows = {int(str(number)): _plain(row) for number, row in edited.to_dict("index").items()}
            _save(workspace, table_of(rows, shown, currency))
        if table is not None:
            st.download_button(
                "Prices (CSV)", write_price_csv(table), "prices.csv", "text/csv", on_click="ignore"
            )
            widgets.json_button("Prices (JSON)", table, "prices.json")
    file = st.file_uploader(
        "Prices from a file (CSV or JSON)", type=["csv", "json"], key=f"price-file {turn}", max_upload_size=4
    )
    if file is not None:
        with frame.fault_boundary():
            _save(workspace, read_dropped(file.getvalue(), file.name))
    if old := old_note(table):
        st.warning(escape_markdown(old))


def _save(workspace: Workspace, table: PriceTable) -> None:
    check_prices(table, today())
    workspace.put(PRICES, PRICES, table)
    st.session_state["price-turn"] += 1
    frame.notify("The prices are stored.")
    st.rerun(scope="app")


def read_dropped(data: bytes, name: str) -> PriceTable:
    """The table of a file. Raises InputFault."""
    if not name.lower().endswith(".json"):
        return read_price_csv(decode(data, name), name)
    _, value = read_contract(data, name)
    if not isinstance(value, PriceTable):
        raise InputFault(name, "is no table of prices", "Give one of the format torchsplit.prices.")
    return value


def rows_of(table: PriceTable) -> list[dict[str, Any]]:
    """The rows to edit."""
    return [
        {
            TYPE: price.gpu_type, PRICE: price.per_hour, DATE: price_date(price.date, DATE), SOURCE: price.source,
            EXAMPLE: price.example,
        }
        for price in table.prices
    ]  # fmt: skip


def table_of(rows: Mapping[int, Mapping[str, Any]], before: PriceTable, currency: str) -> PriceTable:
    """The table of edited rows by their number in `before`, new ones beyond; an example that was edited is none.

    Raises InputFault for a cell that is empty.
    """
    prices = []
    for place, (number, row) in enumerate(rows.items(), 1):
        price = GpuPrice(
            str(_filled(row, TYPE, place)), float(_filled(row, PRICE, place)), _date(row, place),
            str(row.get(SOURCE) or "").strip(), bool(row.get(EXAMPLE)),
        )  # fmt: skip
        known = before.prices[number] if number < len(before.prices) else None
        if price.example and known is not None and known.example and price != known:
            price = replace(price, example=False, source=price.source.replace(EXAMPLE_NOTE, ""))
        prices.append(price)
    return PriceTable(currency.strip(), tuple(prices))


def _plain(row: Mapping[Any, Any]) -> dict[str, Any]:
    """A row of the editor with None for what is empty."""
    return {str(key): None if _is_empty(cell) else cell for key, cell in row.items()}


def _is_empty(cell: Any) -> bool:
    return cell is None or cell is pd.NaT or (isinstance(cell, float) and math.isnan(cell))


def _filled(row: Mapping[str, Any], name: str, place: int) -> Any:
    value = row.get(name)
    if value is None or value == "":
        raise InputFault(f"row {place}: {name}", "is empty", "Fill it, or delete the row.")
    return value


def _date(row: Mapping[str, Any], place: int) -> str:
    value = _filled(row, DATE, place)
    return value.strftime("%Y-%m-%d") if isinstance(value, datetime.date) else str(value)


def old_note(table: PriceTable | None) -> str:
    """Which prices are older than three months; "" where none is."""
    old = [
        f"{price.gpu_type} {days} days"
        for price in (table.prices if table is not None else ())
        if not price.example and (days := (today() - price_date(price.date, DATE)).days) > OLD_DAYS
    ]
    return f"Old prices: {', '.join(old)}. Look whether they still hold." if old else ""
