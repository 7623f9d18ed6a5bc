"""The best published utilisation of a card at a model's size; a higher estimate gets a warning."""

from __future__ import annotations

import csv
from bisect import bisect_right
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

FILE = Path(str(files("torchsplit_core.strategy") / "data" / "published_mfu.csv"))
"""Written by `python -m benchmarks.published_mfu --write`, each row with its source."""
FIELDS = ("gpu", "size", "mfu", "model", "framework", "n_gpus", "precision", "source")
SIZES = (0.0, 1.0, 3.0, 10.0, 30.0, 100.0, 10000.0)
"""Bounds of the size classes, in billions of weights."""


@dataclass(frozen=True, slots=True)
class PublishedStep:
    """The training step with the highest published model FLOP/s utilisation for a card and a size class."""

    mfu: float
    model: str
    framework: str
    source: str


def size_class(parameters: float) -> int:
    """The size class of a number of weights."""
    return min(bisect_right(SIZES, parameters / 1e9), len(SIZES) - 1) - 1


@cache
def _table() -> dict[tuple[str, int], PublishedStep]:
    with FILE.open(newline="", encoding="utf-8") as stream:
        return {
            (row["gpu"], int(row["size"])): PublishedStep(
                float(row["mfu"]), row["model"], row["framework"], row["source"]
            )
            for row in csv.DictReader(stream)
        }


def best_published(gpu: str, parameters: float) -> PublishedStep | None:
    """The card's step of the nearest size class, the higher if two are equally near; None if it has none."""
    place = size_class(parameters)
    known = [(abs(other - place), -step.mfu, step) for (card, other), step in _table().items() if card == gpu]
    return min(known, key=lambda item: item[:2])[2] if known else None


def mfu_warning(gpu: str, parameters: float, mfu: float) -> str:
    """The warning about an estimated utilisation above the best published one; empty if it is not above."""
    best = best_published(gpu, parameters)
    if best is None or mfu <= best.mfu:
        return ""
    return (
        f" Its MFU of {mfu:.2f} is above {best.mfu:.2f}, the best step published for {gpu} at about this size "
        f"({best.model}, {best.framework}; {best.source}): expect a longer step."
    )
