"""What a slice loses to loaded neighbours: measured GPUs, all of the catalogue, with their sources."""

import csv
from pathlib import Path

from torchsplit_core import hardware
from torchsplit_core.hardware import catalogue, neighbour_load

TABLE = Path(hardware.__file__).parent / "data" / "neighbour_load.csv"


def test_every_row_is_a_gpu_of_the_catalogue_with_a_source():
    with TABLE.open(encoding="utf-8", newline="") as file:
        names = [row["gpu"] for row in csv.DictReader(file)]
    assert names
    for name in names:
        found = neighbour_load(name)
        assert name in catalogue()
        assert found is not None
        assert 0 < found.lowest <= found.share <= found.highest <= 1
        assert found.pairs > 0
        assert "mlcommons/inference_results" in found.source


def test_the_published_shares_and_none_where_nobody_measured():
    a100, a30 = neighbour_load("A100-80GB"), neighbour_load("A30-24GB")
    assert a100 is not None
    assert a30 is not None
    assert (a100.share, a30.share) == (0.99, 0.91)
    assert neighbour_load("H100-SXM5-80GB") is None
