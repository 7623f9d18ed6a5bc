"""What a slice loses to loaded neighbours on the same GPU, from data/neighbour_load.csv (a source per row)."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class NeighbourLoad:
    """Throughput of a slice with all neighbours loaded, as a share of its throughput with idle neighbours.

    `share` is the median of `pairs` measured pairs, which range from `lowest` to `highest`.
    """

    gpu: str
    share: float
    pairs: int
    lowest: float
    highest: float
    source: str


def neighbour_load(gpu: str) -> NeighbourLoad | None:
    """The figures of a GPU by its catalogue name; None if there is no measurement."""
    return _table().get(gpu)


@cache
def _table() -> dict[str, NeighbourLoad]:
    text = files("torchsplit_core.hardware").joinpath("data/neighbour_load.csv").read_text(encoding="utf-8")
    return {
        row["gpu"]: NeighbourLoad(
            row["gpu"],
            float(row["share"]),
            int(row["pairs"]),
            float(row["lowest"]),
            float(row["highest"]),
            row["source"],
        )
        for row in csv.DictReader(text.splitlines())
    }
