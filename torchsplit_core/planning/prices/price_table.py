"""A table of prices checked, and the GPUs of a request priced by it."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import replace

from torchsplit_core.hardware import gpu_type
from torchsplit_core.values import FleetEntry, InputFault, PlanRequest, quoted
from torchsplit_core.values.limits import check_name, check_number
from torchsplit_core.values.plan.prices import GpuPrice, PriceTable, price_date

OLD_DAYS = 90
"""A price of more days is said to be old."""
FIRST_ZONE = datetime.timezone(datetime.timedelta(hours=14))
"""Where a day begins first: a date is in the future when it is so everywhere."""


def today() -> datetime.date:
    """The date where it is latest."""
    return datetime.datetime.now(FIRST_ZONE).date()


def check_prices(table: PriceTable, now: datetime.date, where: str = "prices") -> None:
    """Raise InputFault for a table that nobody could price by; `now` is the date of today."""
    check_name(f"{where}, currency", table.currency)
    if table.prices and not table.currency.strip():
        raise InputFault(f"{where}, currency", "is empty", "Write for example EUR.")
    seen: set[str] = set()
    for number, price in enumerate(table.prices, 1):
        row = f"{where}: row {number}"
        try:
            known = gpu_type(price.gpu_type).name
        except InputFault as fault:
            raise InputFault(f"{row}, gpu_type", fault.problem, fault.remedy) from fault
        if known in seen:
            raise InputFault(f"{row}, gpu_type", f"{quoted(known)} stands twice", "Keep its newer price.")
        seen.add(known)
        check_number(f"{row}, per_hour", price.per_hour)
        check_name(f"{row}, source", price.source)
        date = price_date(price.date, f"{row}, date")
        if date > now:
            raise InputFault(
                f"{row}, date", f"is {price.date}, in the future", "Write when the price was seen."
            )


def in_use(table: PriceTable) -> dict[str, GpuPrice]:
    """The prices that count, by type: examples do not."""
    return {price.gpu_type: price for price in table.prices if not price.example}


def with_prices(request: PlanRequest, table: PriceTable) -> PlanRequest:
    """The request whose GPUs without a price of their own have that of the table, with its date.

    A price that is from a table already is renewed. Where the table lacks a type of which some GPU has no price,
    nothing is filled in: the cost of a plan would stay unknown, and the objective fewest GPUs would weigh prices
    against GPUs that count 1.
    """
    if missing_prices(request, table):
        return request
    prices = in_use(table)
    return replace(request, gpus=tuple(_priced(entry, prices.get(entry.type)) for entry in request.gpus))


def missing_prices(request: PlanRequest, table: PriceTable) -> tuple[str, ...]:
    """The types of which some GPU has no price, neither its own nor the table's."""
    prices = in_use(table)
    lacking = (entry.type for entry in request.gpus if entry.cost is None and entry.type not in prices)
    return tuple(dict.fromkeys(lacking))


def _priced(entry: FleetEntry, price: GpuPrice | None) -> FleetEntry:
    if price is None or (entry.cost is not None and entry.cost_date is None):
        return entry
    return replace(entry, cost=price.per_hour, cost_date=price.date)


def price_lines(
    request: PlanRequest, table: PriceTable, now: datetime.date, where: str = "the workspace's table"
) -> Iterator[str]:
    """Which prices of the request are from a table and of when; of this table with its currency, and old ones."""
    prices = in_use(table)
    dated = {(entry.type, entry.cost, entry.cost_date): None for entry in request.gpus if entry.cost_date}
    for kind, cost, date in dated:
        price = prices.get(kind)
        is_newest = price is not None and (price.per_hour, price.date) == (cost, date)
        amount = f"{cost:g} {table.currency}" if is_newest else f"{cost:g}"
        age = (now - price_date(date or "", "gpus[].cost_date")).days
        old = f", {age} days old" if age > OLD_DAYS else ""
        source = f"price of {date} from {where}" if is_newest else f"price of {date} from an earlier table"
        yield f"{kind}: {amount} an hour, {source}{old}"


def currency_of(request: PlanRequest, table: PriceTable) -> str:
    """The table's currency where all prices of the request are from it as it stands, else ""."""
    prices = in_use(table)
    known = (
        (price := prices.get(entry.type)) is not None
        and (entry.cost, entry.cost_date) == (price.per_hour, price.date)
        for entry in request.gpus
    )
    return table.currency if all(known) else ""
