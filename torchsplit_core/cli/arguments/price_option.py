"""`--prices FILE`: a dated table of prices, for GPUs that have none in the request."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from torchsplit_core.files.contract import origin_of

if TYPE_CHECKING:
    from torchsplit_core.values import PlanRequest
    from torchsplit_core.values.plan.prices import PriceTable


def prices_option(parser: argparse.ArgumentParser) -> None:
    """Add `--prices`."""
    parser.add_argument(
        "--prices",
        metavar="FILE",
        help="prices an hour by GPU type (JSON or CSV) for GPUs that have none, as the dashboard exports them",
    )


def with_prices_option(request: PlanRequest, options: argparse.Namespace) -> PlanRequest:
    """The request priced by `--prices`; print what is filled in, and what is old. Raises InputFault."""
    if options.prices is None:
        return request
    from torchsplit_core.planning.prices.price_table import missing_prices, price_lines, today, with_prices

    table, where = read_prices(options.prices), origin_of(options.prices)
    missing = missing_prices(request, table)
    if missing:
        print(f"warning: {where} has no price of {', '.join(missing)}, so none is filled in", file=sys.stderr)
    priced = with_prices(request, table)
    if priced != request:
        for line in price_lines(priced, table, today(), where):
            print(f"note: {line}", file=sys.stderr)
    return priced


def read_prices(path: str) -> PriceTable:
    """The table of a file, JSON or CSV. Raises InputFault for one that nobody could price by."""
    from torchsplit_core.cli.tables import read_table
    from torchsplit_core.files import read_text
    from torchsplit_core.planning.prices.price_table import check_prices, today
    from torchsplit_core.tables.prices.price_csv import read_price_csv

    text, origin = read_table(path), origin_of(path)
    table: PriceTable
    if text.lstrip().startswith("{"):
        _, table = read_text(text, origin=origin, expected="torchsplit.prices")
    else:
        table = read_price_csv(text, origin)
    check_prices(table, today(), origin)
    return table
