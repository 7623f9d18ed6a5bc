"""A table of prices as CSV: a row for each type of GPU, all in one currency."""

from __future__ import annotations

from torchsplit_core.tables.cell_parsing import CellFault, parse_not_negative, unescape_formula
from torchsplit_core.tables.sheet import Record, Sheet, read_sheet
from torchsplit_core.tables.write_csv import lists_csv
from torchsplit_core.values import InputFault, quoted, suggestion
from torchsplit_core.values.plan.prices import LONGEST_NOTE, GpuPrice, PriceTable

NECESSARY = ("gpu_type", "per_hour", "currency", "date")
COLUMNS = (*NECESSARY, "source", "example")
YES, NO = ("yes", "true", "1"), ("no", "false", "0", "")


def read_price_csv(text: str, origin: str = "the prices") -> PriceTable:
    """The table of a CSV; its types and dates are for `check_prices`.

    Raises InputFault for a table that is none, a column that is missing, unknown or twice there, a cell that is no
    price, and for two currencies.
    """
    sheet = read_sheet(text, origin)
    _check_header(sheet, origin)
    prices = []
    currency = ""
    for record in sheet.records:
        cells = {name: _cell(record, number) for number, name in enumerate(sheet.header)}
        where = f"{origin}: line {record.line}"
        if not cells["currency"]:
            raise InputFault(f"{where}, currency", "is empty", "Write for example EUR.")
        if currency and cells["currency"] != currency:
            raise InputFault(
                f"{where}, currency",
                f"is {quoted(cells['currency'])}, and an earlier row has {quoted(currency)}",
                "Give all prices in one currency: costs are sums of them.",
            )
        currency = cells["currency"]
        prices.append(_price(cells, where, decimal_comma=sheet.decimal_comma))
    return PriceTable(currency, tuple(prices))


def write_price_csv(table: PriceTable) -> str:
    """The table as `read_price_csv` reads it, but for the currency of one without prices."""
    return lists_csv(
        COLUMNS,
        (
            (
                price.gpu_type, repr(float(price.per_hour)), table.currency, price.date, price.source,
                "yes" if price.example else "no",
            )
            for price in table.prices
        ),
    )  # fmt: skip


def _check_header(sheet: Sheet, origin: str) -> None:
    where = f"{origin}: header"
    for name in sheet.header:
        if name not in COLUMNS:
            problem = f"has the unknown column {quoted(name)}"
            raise InputFault(where, problem, suggestion(name, COLUMNS, "columns"))
        if sheet.header.count(name) > 1:
            raise InputFault(where, f"names {quoted(name)} twice", "Remove one.")
    for name in NECESSARY:
        if name not in sheet.header:
            raise InputFault(where, f"has no column {name}", f"Give the columns {', '.join(COLUMNS)}.")


def _cell(record: Record, number: int) -> str:
    return unescape_formula(record.cells[number]) if number < len(record.cells) else ""


def _price(cells: dict[str, str], where: str, *, decimal_comma: bool) -> GpuPrice:
    for name in ("gpu_type", "date"):
        if not cells[name]:
            raise InputFault(f"{where}, {name}", "is empty", "Fill it, or remove the row.")
    try:
        per_hour = parse_not_negative(cells["per_hour"], decimal_comma=decimal_comma)
    except CellFault as fault:
        raise InputFault(
            f"{where}, per_hour", fault.problem, "Write the price of an hour, 0 or more."
        ) from fault
    source, example = cells.get("source", ""), cells.get("example", "").lower()
    if len(source) > LONGEST_NOTE:
        raise InputFault(
            f"{where}, source", f"has {len(source)} characters, more than {LONGEST_NOTE}", "Shorten it."
        )
    if example not in (*YES, *NO):
        raise InputFault(f"{where}, example", f"is {quoted(example)}, neither yes nor no", "Write yes or no.")
    return GpuPrice(cells["gpu_type"], per_hour, cells["date"], source, example in YES)
