"""The time of a decode step as placements reckon it, against published measurements of tensor-parallel decoders.

    python -m benchmarks.decode_measured

Each row of data/splitwise_decode.csv (its source and licence stand in data/NOTICE.md) is a decoder whole on 2 to 8 GPUs
of one node, every layer cut among them: one segment with `split: tensor`. Its time per token is the batch over the
segment's tokens/s, at the mean look-back of the row. Errors are |reckoned − measured| / measured. "One row known": the
same with a time a step added that makes the row of the fewest sequences right, of that GPU, decoder and number of
GPUs; that row is not counted then.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from torchsplit_core.placement.model.segments import SegmentModel
from torchsplit_core.placement.request.fleets import list_gpus, parse_nodes, tiered_links
from torchsplit_core.values import PlacementModel, PlacementRequest, RooflineThroughput
from torchsplit_core.values.units import GIB

DATA = Path(__file__).resolve().parent / "data" / "splitwise_decode.csv"
TYPES = {"a100-80gb": "A100-80GB", "h100-80gb": "H100-SXM5-80GB", "h100-80gb-pcap": "H100-SXM5-80GB"}
"""The table's GPU names -> names in the catalogue."""


@dataclass(frozen=True)
class Decoder:
    """Sizes of a published decoder, as in its config.json; `weights`: parameters of one layer."""

    layers: int
    hidden: int
    ffn: int
    keys: int
    weights: int


DECODERS = {
    # meta-llama/Llama-2-70b-hf: 64 heads, 8 key heads, gated feed-forward.
    "llama2-70b": Decoder(80, 8192, 28672, 1024, 2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672),
    # bigscience/bloom: 112 heads, feed-forward size of four times the hidden size.
    "bloom-176b": Decoder(70, 14336, 57344, 14336, 12 * 14336 * 14336),
}


@dataclass(frozen=True)
class Row:
    """A measured point; `look_back`: mean number of tokens that a new token attends to."""

    decoder: str
    gpu: str
    gpus: int
    look_back: int
    batch: int
    measured_ms: float


def read_rows() -> list[Row]:
    """Read the published table."""
    with DATA.open(encoding="utf-8", newline="") as file:
        return [
            Row(
                row["model"],
                row["gpu"],
                int(row["tensor_parallel"]),
                int(row["prompt_tokens"]) + int(row["output_tokens"]) // 2,
                int(row["batch"]),
                float(row["time_per_token_ms"]),
            )
            for row in csv.DictReader(file)
        ]


def reckoned_ms(row: Row) -> float | None:
    """Estimated ms per token of the row's segment; None if the segment does not fit into memory."""
    sizes = DECODERS[row.decoder]
    model = PlacementModel(
        sizes.layers,
        sizes.hidden,
        sizes.ffn,
        2.0 * sizes.weights / GIB,
        row.look_back,
        row.batch,
        key_value_size=sizes.keys,
    )
    nodes = parse_nodes(f"1x{row.gpus}x{TYPES[row.gpu]}")
    request = PlacementRequest(
        model,
        list_gpus(nodes),
        RooflineThroughput("decode"),
        tiered_links(nodes, network_gib_per_s=1.0),
        max_gpus_per_segment=row.gpus,
        communication_efficiency=1.0,
        split="tensor",
    )
    segment = SegmentModel(request)
    value = segment.value(segment.kinds, sizes.layers)
    return 1e3 * row.batch / value if value > 0 else None


@dataclass(frozen=True)
class Judged:
    """A row with its estimates: without any measurement, and with one row of its kind known (None: it is that row)."""

    row: Row
    alone_ms: float
    known_ms: float | None


def judge(rows: Sequence[Row]) -> tuple[list[Judged], int]:
    """Every row that fits into memory, judged, and the number of rows that do not fit."""
    pairs = [(row, reckoned_ms(row)) for row in rows]
    held = [(row, found) for row, found in pairs if found is not None]
    first: dict[tuple[str, str, int], tuple[Row, float]] = {}
    for row, found in held:
        key = (row.decoder, row.gpu, row.gpus)
        best = first.get(key)
        if best is None or (row.batch, row.look_back) < (best[0].batch, best[0].look_back):
            first[key] = (row, found)
    judged = []
    for row, found in held:
        own, own_ms = first[row.decoder, row.gpu, row.gpus]
        known = None if row is own else found + own.measured_ms - own_ms
        judged.append(Judged(row, found, known))
    return judged, len(pairs) - len(held)


def line(name: str, judged: Sequence[Judged]) -> str:
    """Number of rows, median ratio, and median and p90 of the error, alone and with one row known."""
    ratio = float(np.median([one.alone_ms / one.row.measured_ms for one in judged]))
    alone = [abs(one.alone_ms / one.row.measured_ms - 1) for one in judged]
    known = [abs(one.known_ms / one.row.measured_ms - 1) for one in judged if one.known_ms is not None]
    shares = [f"{100 * float(np.quantile(of, q)):.0f} %" for of in (alone, known) for q in (0.5, 0.9)]
    return f"| {name} | {len(judged)} | {ratio:.2f} | {' | '.join(shares)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--decoders", nargs="*", default=list(DECODERS), choices=list(DECODERS))
    options = parser.parse_args()
    judged, refused = judge([row for row in read_rows() if row.decoder in options.decoders])
    print("| GPU | rows | reckoned / measured | median error | p90 | one row known: median | p90 |")
    print("|---|---|---|---|---|---|---|")
    for gpu in TYPES:
        print(line(gpu, [one for one in judged if one.row.gpu == gpu]))
    for decoder in options.decoders:
        print(line(f"all, {decoder}", [one for one in judged if one.row.decoder == decoder]))
    print(line("all", judged))
    print(f"\n{refused} rows need more memory than their GPUs have, as placements reckon it.")


if __name__ == "__main__":
    main()
