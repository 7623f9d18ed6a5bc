"""An estimate above the best published utilisation of its card is said to be, with the row that it is held against."""

import csv

import pytest

from benchmarks.published_mfu import best_rows
from torchsplit_core.strategy.published_mfu import FIELDS, FILE, best_published, mfu_warning, size_class


def test_the_table_is_that_of_the_rows():
    with FILE.open(newline="", encoding="utf-8") as stream:
        stored = list(csv.DictReader(stream))
    assert stored == best_rows()
    assert all(set(row) == set(FIELDS) and 0.05 < float(row["mfu"]) < 1 and row["source"] for row in stored)


@pytest.mark.parametrize(
    ("parameters", "place"), [(1e6, 0), (9.9e8, 0), (1e9, 1), (8e9, 2), (7e10, 4), (1e15, 5)]
)
def test_sizes_are_classed(parameters, place):
    assert size_class(parameters) == place


def test_the_nearest_class_counts_where_a_card_has_no_row_of_the_size():
    # Nothing of an H100 is published between 30 and 100 billion weights: the higher of both neighbours counts.
    neighbours = [best_published("H100-SXM5-80GB", size) for size in (2e10, 2e11)]
    assert best_published("H100-SXM5-80GB", 7e10) == max(neighbours, key=lambda step: step.mfu)
    assert best_published("L4-24GB", 1e9) is None


def test_only_what_is_above_is_warned_of():
    best = best_published("A100-80GB", 8e9)
    assert mfu_warning("A100-80GB", 8e9, best.mfu) == "" and mfu_warning("L4-24GB", 8e9, 0.9) == ""
    words = mfu_warning("A100-80GB", 8e9, 0.72)
    assert f"MFU of 0.72 is above {best.mfu:.2f}" in words and best.source in words and best.model in words
