"""The workspace's table of prices: empty at first, its example used for nothing, and edited into prices."""

import datetime

import pandas as pd
import pytest

from app.session.dropped_files import store_dropped
from app.shell import price_table
from app.shell.price_table import DATE, EXAMPLE, PRICE, SOURCE, TYPE, table_of
from tests.support.app.page import press, said
from torchsplit_core.files import write_text
from torchsplit_core.planning.prices.price_table import in_use, today
from torchsplit_core.values import InputFault
from torchsplit_core.values.plan.prices import GpuPrice, PriceTable
from torchsplit_core.workspace.archive import export_workspace, import_workspace

TABLE = PriceTable("EUR", (GpuPrice("A100-80GB", 1.5, "2026-01-02", "our contract"),))


def edited(**cells):
    """The example row after an edit."""
    before = price_table.example_table(["A100-80GB"])
    (row,) = price_table.rows_of(before)
    return table_of({0: row | cells}, before, "EUR")


def test_an_example_is_used_once_it_is_edited_or_accepted():
    assert in_use(edited()) == {} and edited().prices[0].example
    assert in_use(edited(**{PRICE: 2.5}))["A100-80GB"].per_hour == 2.5
    assert "nobody" not in edited(**{PRICE: 2.5}).prices[0].source
    assert in_use(edited(**{EXAMPLE: False})) and in_use(edited(**{DATE: datetime.date(2026, 1, 2)}))
    new = {TYPE: "T4-16GB", PRICE: 0.2, DATE: datetime.date(2026, 1, 2), SOURCE: None, EXAMPLE: None}
    (price,) = table_of({1: new}, TABLE, " USD ").prices
    assert price == GpuPrice("T4-16GB", 0.2, "2026-01-02")


@pytest.mark.parametrize("column", [TYPE, PRICE, DATE])
def test_a_cell_that_is_empty_is_named(column):
    with pytest.raises(InputFault, match=f"row 1: {column}: is empty"):
        edited(**{column: None})


def test_the_page_stores_what_was_typed_and_refuses_what_is_none(page, filled, monkeypatch):
    shown = page("workspace", filled)
    assert "There are no prices yet" in said(shown) and filled.find("prices", "prices") is None
    rows = price_table.rows_of(TABLE)
    monkeypatch.setattr(price_table.st, "data_editor", lambda *_, **__: pd.DataFrame(rows))
    press(page("workspace", filled), "Save prices")
    assert filled.get("prices", "prices") == TABLE
    days = (today() - datetime.date(2026, 1, 2)).days
    assert f"Old prices: A100-80GB {days} days" in said(page("workspace", filled))
    rows[0][DATE] = today() + datetime.timedelta(days=1)
    refused = press(page("workspace", filled), "Save prices")
    assert "in the future" in said(refused) and filled.get("prices", "prices") == TABLE


def test_a_table_comes_as_a_file_and_goes_with_the_archive(filled, tmp_path):
    for name in ("prices.json", "PRICES.JSON"):
        assert price_table.read_dropped(write_text(TABLE).encode(), name) == TABLE
    csv = b"gpu_type,per_hour,currency,date,source\nA100-80GB,1.5,EUR,2026-01-02,our contract\n"
    assert price_table.read_dropped(csv, "prices.csv") == TABLE
    with pytest.raises(InputFault, match="is no table of prices"):
        price_table.read_dropped(filled.get_bytes("plan_request", "review"), "review.json")
    filled.put("prices", "prices", TABLE)
    copied = import_workspace(filled.store, export_workspace(filled))
    assert copied.get("prices", "prices") == TABLE


def test_a_dropped_table_is_the_workspaces_and_a_bad_one_is_not(filled):
    assert store_dropped(filled, "from-a-friend.json", write_text(TABLE).encode()).name == "prices"
    assert filled.get("prices", "prices") == TABLE
    twice = PriceTable("EUR", TABLE.prices * 2)
    with pytest.raises(InputFault, match="stands twice"):
        store_dropped(filled, "twice.json", write_text(twice).encode())
    assert filled.get("prices", "prices") == TABLE
