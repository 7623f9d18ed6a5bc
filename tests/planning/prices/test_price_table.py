"""A table of prices: what is refused, which GPUs it prices, and what it says of its dates."""

import datetime
from dataclasses import replace

import pytest

from tests.support.planning.requests import on_a30, simple
from torchsplit_core.files import read_text, write_text
from torchsplit_core.planning import plan
from torchsplit_core.planning.prices.price_table import (
    check_prices,
    currency_of,
    missing_prices,
    price_lines,
    with_prices,
)
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.request.validate import validate
from torchsplit_core.values import FleetEntry, InputFault, PlanRequest
from torchsplit_core.values.plan.prices import GpuPrice, PriceTable

NOW = datetime.date(2026, 11, 28)
A30 = GpuPrice("A30-24GB", 0.5, "2026-11-20", "our contract")


def fleet(*entries: FleetEntry) -> PlanRequest:
    return replace(on_a30(simple("a", {"1g.6gb": 10.0})), gpus=entries)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"per_hour": -1.0}, "prices: row 1, per_hour: is -1.0, below the least value 0"),
        ({"per_hour": float("nan")}, "row 1, per_hour: is nan, not a finite number"),
        ({"gpu_type": "A30-25GB"}, r"row 1, gpu_type: unknown GPU type 'A30-25GB'. Did you mean A30-24GB"),
        ({"date": "2026-12-01"}, "row 1, date: is 2026-12-01, in the future"),
        ({"date": "2026-02-30"}, "row 1, date: is '2026-02-30', not a date"),
        ({"date": "20261120"}, "row 1, date: is '20261120', not a date"),
    ],
)
def test_a_row_that_is_no_price_is_refused(change, words):
    check_prices(PriceTable("EUR", (A30,)), NOW)
    with pytest.raises(InputFault, match=words):
        check_prices(PriceTable("EUR", (replace(A30, **change),)), NOW)


def test_two_rows_of_a_type_and_no_currency_are_refused():
    with pytest.raises(InputFault, match="row 2, gpu_type: 'A30-24GB' stands twice"):
        check_prices(PriceTable("EUR", (A30, replace(A30, per_hour=1.0))), NOW)
    with pytest.raises(InputFault, match="currency: is empty"):
        check_prices(PriceTable(" ", (A30,)), NOW)
    check_prices(PriceTable(""), NOW)


def test_gpus_without_a_price_get_the_tables_and_a_price_of_the_requests_own_stays():
    request = fleet(FleetEntry("A30-24GB"), FleetEntry("A30-24GB", cost=9.0))
    table = PriceTable("EUR", (A30,))
    priced = with_prices(request, table)
    assert [(entry.cost, entry.cost_date) for entry in priced.gpus] == [(0.5, "2026-11-20"), (9.0, None)]
    assert currency_of(priced, table) == ""
    newer = PriceTable("EUR", (replace(A30, per_hour=0.6, date="2026-11-27"),))
    renewed = with_prices(priced, newer)
    assert [entry.cost for entry in renewed.gpus] == [0.6, 9.0] and with_prices(renewed, newer) == renewed
    assert currency_of(with_prices(fleet(FleetEntry("A30-24GB")), table), table) == "EUR"


def test_nothing_is_filled_in_where_a_type_has_no_price():
    request = fleet(FleetEntry("A30-24GB"), FleetEntry("A100-80GB"))
    table = PriceTable("EUR", (A30,))
    assert missing_prices(request, table) == ("A100-80GB",) and with_prices(request, table) == request
    example = PriceTable("EUR", (replace(A30, example=True),))
    alone = fleet(FleetEntry("A30-24GB"))
    assert missing_prices(alone, example) == ("A30-24GB",) and with_prices(alone, example) == alone


def test_the_date_of_a_price_changes_no_plan_and_the_cost_is_the_tables():
    request = fleet(FleetEntry("A30-24GB", count=2))
    priced = with_prices(request, PriceTable("EUR", (A30,)))
    undated = replace(priced, gpus=tuple(replace(entry, cost_date=None) for entry in priced.gpus))
    assert request_hash(priced) == request_hash(undated) != request_hash(request)
    outcome = plan(priced)
    assert outcome.cost_per_hour == 0.5 * sum(gpu.used for gpu in outcome.gpus)
    assert read_text(write_text(priced))[1] == priced and '"cost_date"' not in write_text(request)


def test_what_is_said_of_a_price():
    table = PriceTable("EUR", (A30,))
    priced = with_prices(fleet(FleetEntry("A30-24GB")), table)
    assert list(price_lines(priced, table, NOW)) == [
        "A30-24GB: 0.5 EUR an hour, price of 2026-11-20 from the workspace's table"
    ]
    later = datetime.date(2027, 2, 18)
    (fresh,) = price_lines(priced, table, later)
    (old,) = price_lines(priced, table, later + datetime.timedelta(days=1))
    assert not fresh.endswith("old") and old.endswith(", 91 days old")
    assert list(price_lines(priced, PriceTable("EUR"), NOW)) == [
        "A30-24GB: 0.5 an hour, price of 2026-11-20 from an earlier table"
    ]
    assert list(price_lines(fleet(FleetEntry("A30-24GB", cost=2.0)), table, NOW)) == []


def test_a_date_needs_its_cost_and_is_a_date():
    with pytest.raises(InputFault, match=r"gpus\[0\].cost_date: is 2026-11-20, and there is no cost"):
        validate(fleet(FleetEntry("A30-24GB", cost_date="2026-11-20")))
    with pytest.raises(InputFault, match=r"gpus\[0\].cost_date: is '2026-13-01', not a date"):
        validate(fleet(FleetEntry("A30-24GB", cost=1.0, cost_date="2026-13-01")))
