"""Prices as CSV: read back as they were written, and every cell that is none is named."""

import pytest

from torchsplit_core.tables.prices.price_csv import read_price_csv, write_price_csv
from torchsplit_core.values import InputFault
from torchsplit_core.values.plan.prices import GpuPrice, PriceTable

HEAD = "gpu_type,per_hour,currency,date,source,example\n"
ROW = "A30-24GB,0.5,EUR,2026-11-20,our contract,no\n"


def test_a_table_is_read_as_it_was_written():
    table = PriceTable(
        "EUR",
        (
            GpuPrice("A30-24GB", 1 / 3, "2026-11-20", '=a formula, "quoted"', example=True),
            GpuPrice("CPU-16c", 0.0, "2026-01-01"),
        ),
    )
    assert read_price_csv(write_price_csv(table)) == table
    assert read_price_csv(f"{HEAD}{ROW}").prices == (GpuPrice("A30-24GB", 0.5, "2026-11-20", "our contract"),)
    bare = "date;gpu_type;currency;per_hour\n2026-11-20;A30-24GB;EUR;0,5\n"
    assert read_price_csv(bare) == PriceTable("EUR", (GpuPrice("A30-24GB", 0.5, "2026-11-20"),))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEAD.replace("per_hour", "per_huor") + ROW, "unknown column 'per_huor'. Did you mean per_hour?"),
        (HEAD.replace("date,", "") + ROW, "header: has no column date"),
        (HEAD.replace("source", "date") + ROW, "header: names 'date' twice"),
        (HEAD + ROW.replace("0.5", "-1"), "line 2, per_hour: is -1, below the least value 0"),
        (HEAD + ROW.replace("0.5", "nan"), "line 2, per_hour: is nan, not a finite number"),
        (HEAD + ROW.replace("0.5", ""), "line 2, per_hour: is empty"),
        (HEAD + ROW.replace("EUR", ""), "line 2, currency: is empty"),
        (HEAD + ROW + ROW.replace("EUR", "USD"), "line 3, currency: is 'USD', and an earlier row has 'EUR'"),
        (HEAD + ROW.replace("A30-24GB", ""), "line 2, gpu_type: is empty"),
        (HEAD + ROW.replace(",no", ",maybe"), "line 2, example: is 'maybe', neither yes nor no"),
        (HEAD + ROW.replace("our contract", "x" * 501), "line 2, source: has 501 characters"),
    ],
)
def test_a_cell_that_is_none_is_named(text, words):
    with pytest.raises(InputFault) as fault:
        read_price_csv(text, "prices.csv")
    assert str(fault.value).startswith("prices.csv: ") and words in str(fault.value)
