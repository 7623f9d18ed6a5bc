"""Lengths and limits of the usual uses of an LLM: figures to begin with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UseCase:
    """Lengths and limits of a typical use: tokens, and ms at the 95th percentile."""

    prompt: int
    output: int
    max_ttft_ms: float
    max_tpot_ms: float


USE_CASES: Mapping[str, UseCase] = {
    "Chat": UseCase(1024, 256, 500.0, 50.0),
    "Summarising": UseCase(6144, 512, 2000.0, 60.0),
    "Code": UseCase(2048, 128, 300.0, 30.0),
    "Reasoning": UseCase(512, 3072, 1000.0, 30.0),
}
"""To begin with, each figure editable; answers at 30 to 50 ms a token come faster than people read."""
