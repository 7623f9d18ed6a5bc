"""What a slice loses to loaded neighbours on its GPU, from data/neighbour_load.csv (a source per row)."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class NeighbourLoad:
    """The throughput of a slice whose neighbours are all loaded, as a share of its throughput with them idle.

    `share` stands for the median of `pairs` measured pairs between `lowest` and `highest`.
    """

    gpu: str
    share: float
    pairs: int
    lowest: float
    highest: float
    source: str


def neighbour_load(gpu: str) -> NeighbourLoad | None:
    """Of a GPU by its name in the catalogue; None where nobody measured it."""
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
