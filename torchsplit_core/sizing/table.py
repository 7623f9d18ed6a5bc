"""The rows of a sizing as CSV and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from torchsplit_core.sizing.engine_row import SizingRow
from torchsplit_core.sizing.size import SizingTable
from torchsplit_core.tables.write_csv import rows_csv

COLUMNS = (
    "gpu_type", "profile", "tensor_parallel", "fits", "weights_gib", "kv_gib", "kv_blocks", "max_context", "rate_rps",
    "low_rps", "high_rps", "ttft_ms", "tpot_ms", "goodput", "engines", "gpus", "cost", "binds", "basis", "note",
)  # fmt: skip
DIGITS = 6
"""Significant digits written: far beyond what is known of a figure."""


def size_csv(table: SizingTable) -> str:
    """A header and the rows, comma-separated; an empty cell is not known, or there is none."""
    return rows_csv(COLUMNS, (_record(row) for row in table.rows), digits=DIGITS)


def size_json(table: SizingTable) -> str:
    """A list with an object for each row; `engine` is the server of a simulation request."""
    rows = [
        {
            **{name: _rounded(value) for name, value in _record(row).items()},
            "engine": None if row.engine is None else asdict(row.engine),
        }
        for row in table.rows
    ]
    return json.dumps(rows, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _record(row: SizingRow) -> Mapping[str, Any]:
    return {name: getattr(row, name) for name in COLUMNS}


def _rounded(value: Any) -> Any:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
