"""Options that say which column of a trace is which model, and at which scale."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from torchsplit_core.cli.arguments.numbers_by_name import numbers_by_name
from torchsplit_core.values import InputFault, quoted
from torchsplit_core.values.limits import check_number


def add_trace_options(parser: argparse.ArgumentParser) -> None:
    """Add --map and --scale, which `pairs_of` and `factors_of` read."""
    parser.add_argument(
        "--map",
        action="append",
        default=[],
        metavar="COLUMN=MODEL",
        help="a column whose model has another name",
    )
    parser.add_argument(
        "--scale",
        action="append",
        default=[],
        metavar="F|MODEL=F",
        help="times the rates of the trace, for all models or one",
    )


def pairs_of(texts: Sequence[str]) -> list[tuple[str, str]]:
    """(column, model) of each --map. Raises InputFault."""
    pairs = []
    for text in texts:
        column, separator, model = (part.strip() for part in text.rpartition("="))
        if not separator or not column or not model:
            raise InputFault(
                "--map", f"{quoted(text)} is not COLUMN=MODEL", "Write for example m-small=chat."
            )
        pairs.append((column, model))
    return pairs


def factors_of(texts: Sequence[str]) -> dict[str | None, float]:
    """Factors by model of --scale, for all others under None. Raises InputFault."""
    factors: dict[str | None, float] = {}
    for name, factor in numbers_by_name("--scale", texts, "0.01, or chat=0.5"):
        check_number("--scale", factor, positive=True)
        factors[name] = factor
    return factors
