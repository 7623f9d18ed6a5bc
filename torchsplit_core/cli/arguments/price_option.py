"""`--prices FILE`: a dated table of prices, for GPUs that have none in the request."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

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
    from torchsplit_core.planning.prices.price_table import (
        check_prices,
        missing_prices,
        price_lines,
        today,
        with_prices,
    )

    table, now = read_prices(options.prices), today()
    check_prices(table, now, options.prices)
    missing = missing_prices(request, table)
    if missing:
        print(
            f"warning: {options.prices} has no price of {', '.join(missing)}, so none is filled in",
            file=sys.stderr,
        )
    priced = with_prices(request, table)
    if priced != request:
        for line in price_lines(priced, table, now, options.prices):
            print(f"note: {line}", file=sys.stderr)
    return priced


def read_prices(path: str) -> PriceTable:
    """The table of a file, JSON or CSV, not checked. Raises InputFault."""
    from torchsplit_core.cli.tables import read_table
    from torchsplit_core.files import read_text
    from torchsplit_core.tables.prices.price_csv import read_price_csv

    text = read_table(path)
    if text.lstrip().startswith("{"):
        table: PriceTable = read_text(text, origin=path, expected="torchsplit.prices")[1]
        return table
    return read_price_csv(text, path)
