"""A dated table of prices an hour, by type of GPU."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from typing import Annotated

from torchsplit_core.values.errors import InputFault, quoted
from torchsplit_core.values.fields import Added, Amount, Length, Name

DATE_PATTERN = "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
PriceDate = Annotated[str, Length(pattern=DATE_PATTERN)]
"""YYYY-MM-DD."""
LONGEST_NOTE = 500


@dataclass(frozen=True, slots=True)
class GpuPrice:
    """The price of one GPU (or host) of a type for an hour, as of a date.

    `source`: who said so, in words. An `example` shows how a row looks, and is no price: nothing uses it.
    """

    gpu_type: Name
    per_hour: Amount
    date: PriceDate
    source: Annotated[str, Length(max_length=LONGEST_NOTE, is_name=True)] = ""
    example: Added[bool] = False


@dataclass(frozen=True, slots=True)
class PriceTable:
    """Prices in one currency, at most one for each type. `currency` is a text, EUR for example."""

    currency: Annotated[str, Length(max_length=20, is_name=True)]
    prices: tuple[GpuPrice, ...] = ()


def price_date(text: str, where: str) -> datetime.date:
    """The date of a price. Raises InputFault for what is none."""
    try:
        # Python reads other forms of a date, too.
        return datetime.date.fromisoformat(text if re.fullmatch(DATE_PATTERN, text) else "")
    except ValueError:
        raise InputFault(where, f"is {quoted(text)}, not a date", "Write it as 2026-11-20.") from None
