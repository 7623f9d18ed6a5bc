"""Shared by the planner's benchmarks: sizes on the command line, and figures as text of a table."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

TOLERANCE = 1e-6
"""Values closer than this, relatively, are equal (the contract of plan outcomes)."""


def parse_size(text: str) -> tuple[int, int]:
    """Parse `8x4` as (8 models, 4 GPUs), for argparse."""
    models, _, gpus = text.partition("x")
    if not (models.isdecimal() and gpus.isdecimal() and int(models) and int(gpus)):
        raise argparse.ArgumentTypeError(f"{text!r} is not MODELSxGPUS, for example 8x4")
    return int(models), int(gpus)


def same(first: float, second: float) -> bool:
    """Whether two values are equal in the sense of the contract."""
    return abs(first - second) <= TOLERANCE * max(abs(first), abs(second))


def gap_text(gap: float | None) -> str:
    """A gap as a percentage that never rounds a nonzero gap to zero; – if unknown."""
    if gap is None:
        return "–"
    if gap == 0:
        return "0"
    return f"{gap:.2%}" if gap >= 1e-4 else "< 0.01%"


def ended(status: str, gap: float | None) -> str:
    """How a search ended, in one cell: a proof, or the gap that is left."""
    return status if status in ("optimal", "infeasible") else f"{status}, gap {gap_text(gap)}"


def value_text(value: float | None) -> str:
    """A value or bound to six significant digits; – if there is none."""
    return "–" if value is None else f"{value:.6g}"


def heading(columns: Sequence[str]) -> str:
    return f"{row(columns)}\n{'|---' * len(columns)}|"


def row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def nearest_rank(values: Sequence[float], share: float) -> float:
    """Quantile by nearest rank: the smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    reached = next(k for k in range(1, len(ordered) + 1) if k >= share * len(ordered) - 1e-9)
    return ordered[reached - 1]


def answer_of_child(module: str, arguments: Sequence[str], limit_s: float) -> dict[str, Any]:
    """The JSON that a benchmark prints when it runs in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{module}", *arguments],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=limit_s, check=True,
    )  # fmt: skip
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
