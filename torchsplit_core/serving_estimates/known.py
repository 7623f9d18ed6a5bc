"""What known rows say of step times, for engines that have no row of their own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from torchsplit_core.llm import EngineConstants
from torchsplit_core.serving_estimates.table import known_row, read_rows
from torchsplit_core.values import WHOLE_GPU, InputFault, LlmPoint
from torchsplit_core.values.llm.decoder import DecoderSizes

KnownFactors = Mapping[tuple[str, int], float]
"""By GPU type and GPUs of an engine: measured times of a step over those from sizes."""


def known_factors(
    text: str, sizes: DecoderSizes, folder: Path, *, origin: str = "the table"
) -> tuple[KnownFactors, tuple[str, ...]]:
    """The factors of this decoder from the rows of `estimate-serving` that have figures, and why rows play no part.

    Raises InputFault for a text that is no such table, and where no row is of this decoder in this precision.
    """
    constants = EngineConstants()
    rows = read_rows(text, folder, origin=origin)
    errors: dict[tuple[str, int], list[float]] = {}
    reasons = []
    for place, row in enumerate(rows, 1):
        if isinstance(row, str):
            reasons.append(f"row {place}: {row}")
        elif not _is_same(row.sizes, sizes):
            reasons.append(f"row {place} is of {row.model}, {row.sizes.dtype}")
        elif row.device.profile is None and (known := known_row(rows, place - 1, constants)) is not None:
            errors.setdefault((row.device.gpu_type, row.device.tensor_parallel), []).append(known.step)
        else:
            reasons.append(f"row {place} has no time per token of a whole GPU, or none from sizes")
    if not errors:
        why = f": {reasons[0]}" if reasons else ""
        raise InputFault(
            origin,
            f"has no row with figures of this model in this precision{why}",
            "Give measured rows of it (ttft_mean_ms and e2e_mean_ms, or itl_mean_ms), or leave the file out.",
        )
    return {key: math.exp(_shrunk(steps, constants)) for key, steps in errors.items()}, tuple(reasons)


def measured_points(
    text: str, sizes: DecoderSizes, folder: Path, *, origin: str = "the table"
) -> tuple[tuple[LlmPoint, ...], tuple[str, ...]]:
    """A point for each row of this decoder with measured times to the first token and per token, and why others have
    none.

    TTFT is the row's 99th percentile, else its 90th, else its mean; time per token its mean: what a row has, not the
    limited percentile. Rates are of one engine.
    """
    points, reasons = [], []
    for place, row in enumerate(read_rows(text, folder, origin=origin), 1):
        if isinstance(row, str):
            reasons.append(f"row {place}: {row}")
            continue
        ttft = next(
            (
                row.figures[name]
                for name in ("ttft_p99_ms", "ttft_p90_ms", "ttft_mean_ms")
                if name in row.figures
            ),
            None,
        )
        if not _is_same(row.sizes, sizes):
            reasons.append(f"row {place} is of {row.model}, {row.sizes.dtype}")
        elif ttft is None or "itl_mean_ms" not in row.figures or row.requests is not None:
            reasons.append(f"row {place} has no rate with a time to the first token and per token")
        else:
            points.append(
                LlmPoint(
                    row.device.gpu_type, row.device.profile or WHOLE_GPU, row.rate_rps / row.engines,
                    row.device.tensor_parallel, ttft, row.figures["itl_mean_ms"],
                )
            )  # fmt: skip
    return tuple(points), tuple(reasons)


def _is_same(first: DecoderSizes, second: DecoderSizes) -> bool:
    """Whether two decoders have equal layers in one precision; both types of 16 bits are."""
    return _comparable(first) == _comparable(second)


def _comparable(sizes: DecoderSizes) -> DecoderSizes:
    kind = "bf16" if sizes.dtype == "fp16" else sizes.dtype
    return replace(sizes, dtype=kind, max_model_len=None, kv_dtype=None)


def _shrunk(errors: Sequence[float], constants: EngineConstants) -> float:
    """The mean of the errors beside one of 0 for an engine without a known row, each by its precision."""
    weight = 1 / constants.calibrated_spread**2
    return sum(errors) * weight / (len(errors) * weight + 1 / constants.spread**2)
