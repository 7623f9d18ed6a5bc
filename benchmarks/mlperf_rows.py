"""Published MLPerf rows of slices: reading with one message for each fault, and the two points of a Server row.

A Server row's points are SingleStream and Offline results of the same GPU, profile and benchmark: of the same system
if there are any, else of the same round, else of any. Accuracy targets differ in precision, so `bert-99` replaces
`bert-99.9` (or the reverse) only if the Server row's target has no such result. Among equals the system with the most
similar name is taken.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from torchsplit_core.values import InputFault, quoted, suggestion, system_reason

TEXT = ("round", "system", "benchmark", "scenario", "gpu", "slices", "note")
NUMBERS = (
    *("metric", "mean_ms", "p50_ms", "p95_ms", "p99_ms"),
    *("max_batch", "queue_delay_us", "streams", "target_latency_ms"),
)
NEEDED = ("round", "system", "benchmark", "scenario", "gpu", "slices", "metric")
"""Columns that a table must have; other missing columns count as empty."""

WHOLE = {"max_batch": 1e6, "streams": 64}
"""Columns of whole numbers from 1 on, and their largest values."""

MOST = 1e15
"""Largest value of any other number; positive rates and times are at least its inverse."""

SCENARIOS = ("SingleStream", "Offline", "Server", "MultiStream")


@dataclass(frozen=True)
class Row:
    """A row: `slices` slices of `profile` ("full GPU": whole GPUs), None if the column cannot be read.

    `metric` is completed queries/s for Server, samples/s for Offline, and the p90 in ns for SingleStream.
    """

    line: int
    texts: Mapping[str, str]
    numbers: Mapping[str, float | None]

    @property
    def benchmark(self) -> str:
        """The benchmark with its accuracy target, as in the row."""
        return self.texts["benchmark"]

    @property
    def family(self) -> str:
        """The benchmark without its accuracy target."""
        return re.sub(r"-99(\.9)?$", "", self.benchmark)

    @property
    def place(self) -> tuple[int, str] | None:
        """Number and profile of the slices."""
        text = self.texts["slices"]
        found = re.fullmatch(r"([0-9]{1,6})\s*x\s*(\S.*)", text)
        if found:
            count, profile = int(found[1]), found[2]
        elif whole := re.fullmatch(r"(full GPU)(?:\s*x\s*([0-9]{1,6}))?", text):
            count, profile = int(whole[2] or 1), whole[1]
        else:
            return None
        return (count, profile) if count else None

    @property
    def loaded(self) -> bool:
        """Whether the GPU's other slices were loaded too."""
        return "HeteroMultiUse" in self.texts["system"] or "at the same time" in self.texts["note"]

    @property
    def limit_ms(self) -> float | None:
        """Limit of the p99 of a valid Server result, if the row gives it."""
        return self._positive("target_latency_ms")

    @property
    def rate(self) -> float | None:
        """The metric, if it is positive."""
        return self._positive("metric")

    def single_ms(self, *, mean: bool) -> float | None:
        """A SingleStream row's mean or median time of a request, or the nearest figure that it has."""
        for column in ("mean_ms", "p50_ms") if mean else ("p50_ms", "mean_ms"):
            value = self._positive(column)
            if value is not None:
                return value
        return self.rate / 1e6 if self.rate is not None else None

    def _positive(self, column: str) -> float | None:
        value = self.numbers[column]
        return value if value is not None and value >= 1 / MOST else None


def read_rows(path: Path) -> tuple[list[str], list[dict[str, str]], list[Row]]:
    """The columns, the cells as text, and the parsed rows. Raises InputFault."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputFault(str(path), f"cannot be read: {system_reason(error)}", "Name a CSV file.") from None
    except UnicodeDecodeError:
        raise InputFault(str(path), "is not text in UTF-8", "Save it as a CSV file in UTF-8.") from None
    try:
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        lines = [(reader.line_num, cells) for cells in reader if cells]
    except csv.Error as error:
        raise InputFault(str(path), f"is not CSV: {error}", "Write it as CSV again.") from None
    columns = lines[0][1] if lines else []
    missing = [name for name in NEEDED if name not in columns]
    if missing:
        raise InputFault(
            "ROWS.csv, first line",
            f"lacks columns of mig_mlperf_dev.csv: {', '.join(missing)}",
            "Add them; cells may be empty.",
        )
    twice = sorted({name for name in columns if columns.count(name) > 1})
    if twice:
        raise InputFault("ROWS.csv, first line", f"names {', '.join(twice)} more than once", "Rename one.")
    if len(lines) < 2:
        raise InputFault(str(path), "has a header but no rows", "Add rows.")
    cells = []
    for line, values in lines[1:]:
        if len(values) != len(columns):
            raise InputFault(
                f"ROWS.csv, line {line}",
                f"has {len(values)} cells for {len(columns)} columns",
                "Add or quote cells.",
            )
        cells.append((line, dict(zip(columns, values, strict=True))))
    return columns, [row for _, row in cells], [_row(line, row) for line, row in cells]


def _row(line: int, cells: Mapping[str, str]) -> Row:
    texts = {name: cells.get(name, "").strip() for name in TEXT}
    if texts["scenario"] not in SCENARIOS:
        raise InputFault(
            f"ROWS.csv, line {line}, scenario",
            f"unknown scenario {quoted(texts['scenario'])}",
            suggestion(texts["scenario"], SCENARIOS, "scenarios"),
        )
    return Row(line, texts, {name: _number(line, name, cells.get(name, "")) for name in NUMBERS})


def _number(line: int, column: str, text: str) -> float | None:
    """A cell's number; None if it is empty. Raises InputFault."""
    text = text.strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if column in WHOLE:
        good, rule = (
            1 <= value <= WHOLE[column] and value == int(value),
            f"a whole number of 1 to {WHOLE[column]:.0f}",
        )
    else:
        good, rule = 0 <= value <= MOST, f"a number of 0 to {MOST:.0e}"
    if not good:
        raise InputFault(
            f"ROWS.csv, line {line}, {column}", f"is {quoted(text)}, not {rule}", "Mend or empty it."
        )
    return value


def own_offline(server: Row, rows: Sequence[Row]) -> Row | None:
    """The Offline row that serves as the Server row's point."""
    return _nearest(
        server, [row for row in rows if row.texts["scenario"] == "Offline" and row.rate is not None]
    )


def own_single(server: Row, rows: Sequence[Row]) -> Row | None:
    """The SingleStream row that serves as the Server row's point."""
    return _nearest(
        server,
        [
            row
            for row in rows
            if row.texts["scenario"] == "SingleStream"
            and row.single_ms(mean=False) is not None
            and row.place is not None
            and row.place[0] == 1
        ],
    )


def _nearest(server: Row, rows: Iterable[Row]) -> Row | None:
    if server.place is None:
        return None
    able = [
        row
        for row in rows
        if row.family == server.family
        and row.texts["gpu"] == server.texts["gpu"]
        and row.place is not None
        and row.place[1] == server.place[1]
    ]

    def distance(row: Row) -> tuple[bool, int, int, bool, int, int, int]:
        """Smaller is nearer: precision, then system and round, then the number of slices and the name."""
        assert row.place is not None and server.place is not None
        system, round_ = server.texts["system"], server.texts["round"]
        if row.texts["system"] == system:
            standing = 0 if row.texts["round"] == round_ else 1
        else:
            standing = 2 if row.texts["round"] == round_ else 3
        name = row.texts["system"]
        common = _common(name.split("_"), system.split("_"))
        return (
            row.benchmark != server.benchmark,
            standing,
            abs(row.place[0] - server.place[0]),
            row.loaded != server.loaded,
            -common,
            len(name),
            row.line,
        )

    return min(able, key=distance, default=None)


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """Number of words that two names have in common at their beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
