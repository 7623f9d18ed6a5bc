"""Simulated response times against MLPerf's official Server results on MIG slices.

    python -m benchmarks.simulation_mlperf [ROWS.csv] [-o OUT.csv]    (or by its path)

From a slice's SingleStream and Offline results alone (`benchmarks/mlperf_rows.py` says which, and
`benchmarks/mlperf_prediction.py` how) the p50, p95 and p99 of its Server result at the measured rate. Without
ROWS.csv: the rows of data/mlperf_mig.csv (source and licence in data/NOTICE.md), also with the fitted numbers fitted
again without the round and GPU that are judged. `-o` writes the rows with predicted_p50_ms, predicted_p95_ms and
predicted_p99_ms, empty where a row is none of Server or nothing was found. Ends with 2 and one line where ROWS.csv is
at fault.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

if not __package__:  # run by its path: the package `benchmarks` lies in the repository's root
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.mlperf_prediction import PERCENTILES, REQUESTS, Fitted, Prediction, predict
from benchmarks.mlperf_rows import Row, read_rows
from benchmarks.mlperf_ways import way_of
from torchsplit_core.values import InputFault, system_reason

DATA = Path(__file__).resolve().parent / "data" / "mlperf_mig.csv"
COLUMNS = tuple(f"predicted_p{percent}_ms" for percent in PERCENTILES)
WITHIN = 0.15

FLOOR_SHARES = (0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 1.0)
LAUNCHES_MS = (1.8, 2.2, 2.6)
UNFILLED = (0.4, 0.7, 1.0)
BERT_SHARES = (0.4, 0.5, 0.6)
HOPS_MS = (0.0, 0.01, 0.02, 0.03, 0.05)


@dataclass(frozen=True)
class Judged:
    """A Server row, its prediction, and the prediction by parameters fitted without its round and GPU."""

    row: Row
    prediction: Prediction
    left_out: Prediction | None = None

    @property
    def group(self) -> str:
        """The group under which the row is reported."""
        place = self.row.place
        if place is not None and place[1] == "full GPU":
            return "whole GPUs"
        if place is None or place[0] > 1:
            return "whole servers"
        return self.row.family


def error(row: Row, prediction: Prediction, percent: int) -> float | None:
    """(predicted - measured) / measured; None if either is missing."""
    measured = row.numbers[f"p{percent}_ms"]
    if prediction.times_ms is None or not measured:
        return None
    return prediction.times_ms[PERCENTILES.index(percent)] / measured - 1


def servers(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row.texts["scenario"] == "Server"]


class Known:
    """Cached predictions of the rows under candidate parameters."""

    def __init__(self, rows: Sequence[Row], requests: int) -> None:
        self.rows, self.requests = rows, requests
        self.found: dict[tuple[int, Fitted], Prediction] = {}

    def of(self, row: Row, fitted: Fitted) -> Prediction:
        """Predict a row; the row's measured times are not used."""
        key = (row.line, fitted)
        if key not in self.found:
            self.found[key] = predict(row, self.rows, fitted, self.requests)
        return self.found[key]


def fitted_without(rows: Sequence[Row], left: Callable[[Row], bool], known: Known) -> Fitted:
    """Fit the parameters by least squares of log errors over the rows that are not left out.

    ResNet-50 and SSD: of p95 over single slices; for streams that share a slice also over whole servers. BERT: of p50
    and p95 over all rows.
    """
    seen = [row for row in servers(rows) if row.place is not None and not left(row)]
    images = [row for row in seen if row.family in ("resnet50", "ssd-resnet34", "retinanet")]
    bert = [row for row in seen if row.family == "bert"]
    several = [row for row in images if way_of(row).streams > 1]
    alone = [row for row in images if way_of(row).streams == 1 and row.place and row.place[0] == 1]

    def squares(of: Sequence[Row], fitted: Fitted, percents: Sequence[int] = (95,)) -> float:
        errors = [error(row, known.of(row, fitted), percent) for row in of for percent in percents]
        return sum(1.0 if one is None else min(1.0, math.log1p(one) ** 2) for one in errors)

    hop = min(HOPS_MS, key=lambda value: squares(alone, Fitted(hop_ms=value)))
    share = min(FLOOR_SHARES, key=lambda value: squares(several, Fitted(floor_share=value)))
    of_bert = min(
        itertools.product(LAUNCHES_MS, UNFILLED, BERT_SHARES),
        key=lambda of: squares(bert, Fitted(launch_ms=of[0], unfilled=of[1], bert_share=of[2]), (50, 95)),
    )
    return Fitted(share, hop, *of_bert)


def judge(rows: Sequence[Row], requests: int, leave_out: bool) -> list[Judged]:
    """Predict and judge every Server row."""
    refitted: dict[tuple[str, str], Fitted] = {}
    known = Known(rows, max(1000, requests // 20))
    judged = []
    for row in servers(rows):
        found = predict(row, rows, requests=requests)
        left = None
        if leave_out:
            key = _group(row)
            if key not in refitted:
                refitted[key] = fitted_without(rows, partial(_is_of, key), known)
            left = predict(row, rows, refitted[key], requests)
        judged.append(Judged(row, found, left))
    return judged


def _group(row: Row) -> tuple[str, str]:
    return row.texts["round"], row.texts["gpu"]


def _is_of(group: tuple[str, str], row: Row) -> bool:
    return _group(row) == group


def per_cent(value: float | None) -> str:
    """A share as a page shows it."""
    return "n/a" if value is None else f"{100 * value:.0f} %"


def _median(errors: Iterable[float | None]) -> float | None:
    known = [abs(one) for one in errors if one is not None]
    return float(np.median(known)) if known else None


def _within(errors: Sequence[float | None]) -> str:
    return f"{sum(one is not None and abs(one) <= WITHIN for one in errors)} of {len(errors)}"


def summary(judged: Sequence[Judged], leave_out: bool) -> list[str]:
    """The table by benchmark."""
    head = ["what", "Server rows", "p95 within 15 %", "median error of p50", "p95", "p99"]
    if leave_out:
        head += ["left out: p95 within 15 %", "median error of p95"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    groups = sorted({one.group for one in judged}, key=lambda name: (name.startswith("whole"), name))
    for group in groups:
        own = [one for one in judged if one.group == group]
        errors = {
            percent: [error(one.row, one.prediction, percent) for one in own] for percent in PERCENTILES
        }
        cells = [group, str(len(own)), _within(errors[95])]
        cells += [per_cent(_median(errors[percent])) for percent in PERCENTILES]
        if leave_out:
            left = [error(one.row, one.left_out, 95) for one in own if one.left_out is not None]
            cells += [_within(left), per_cent(_median(left))] if left else ["n/a", "n/a"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def single_rows(judged: Sequence[Judged]) -> list[str]:
    """Predicted against measured times, one line for each row."""
    lines = [
        "| round | system | benchmark | requests/s | p50 ms predicted / measured | p95 | p99 | p95 off by |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in judged:
        rate = one.row.numbers["metric"]
        cells = [
            *(one.row.texts[name].replace("|", "/") for name in ("round", "system", "benchmark")),
            "n/a" if rate is None else f"{rate:.0f}",
        ]
        times = one.prediction.times_ms or (None, None, None)
        for percent, time in zip(PERCENTILES, times, strict=True):
            measured = one.row.numbers[f"p{percent}_ms"]
            pair = ("n/a" if value is None else f"{value:.2f}" for value in (time, measured))
            cells.append(" / ".join(pair))
        off = error(one.row, one.prediction, 95)
        cells.append(one.prediction.missing or ("n/a" if off is None else f"{100 * off:+.0f} %"))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def write(
    path: Path, columns: Sequence[str], cells: Sequence[Mapping[str, str]], found: Mapping[int, Prediction]
) -> None:
    """Write the rows with their predictions appended; `found` is keyed by row index."""
    kept = [name for name in columns if name not in COLUMNS]
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow([*kept, *COLUMNS])
            for place, row in enumerate(cells):
                times = found[place].times_ms if place in found else None
                told = [f"{time:.4f}" for time in times] if times else [""] * len(COLUMNS)
                writer.writerow([*(row[name] for name in kept), *told])
    except OSError as fault:
        raise InputFault(
            "-o", f"{path} cannot be written: {system_reason(fault)}", "Name another file."
        ) from None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("rows", nargs="?", type=Path, metavar="ROWS.csv")
    parser.add_argument("-o", "--output", type=Path, metavar="OUT.csv")
    parser.add_argument("--requests", type=int, default=REQUESTS, help="simulated for each row")
    options = parser.parse_args()
    if options.requests < 1000:
        parser.error("--requests is 1000 or more")
    try:
        columns, cells, rows = read_rows(options.rows or DATA)
        leave_out = options.rows is None
        judged = judge(rows, options.requests, leave_out)
        if options.output:
            place = {id(row): number for number, row in enumerate(rows)}
            write(options.output, columns, cells, {place[id(one.row)]: one.prediction for one in judged})
    except InputFault as fault:
        print(fault, file=sys.stderr)
        return 2
    if not judged:
        print("No Server rows: nothing to predict.")
        return 0
    print("\n".join([*summary(judged, leave_out), "", *single_rows(judged)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
