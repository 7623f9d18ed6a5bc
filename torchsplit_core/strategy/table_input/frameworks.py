"""A framework and its year from free text: the attention kernel, fused layers, overlap."""

from __future__ import annotations

import re

from torchsplit_core.values.training import Attention, Generation, Precision, TrainingSoftware

FLASH_SINCE = 2023.0
"""Megatron-LM has FlashAttention since early 2023, vendor kernels (cuDNN) through Transformer Engine since 2024."""
CUDNN_SINCE = 2024.0
UNKNOWN_YEAR = 2024.0


def year_of(date: str) -> float:
    """ "2024-10" as 2024.75; the middle of a span; 2024 by default."""
    months = [
        float(year) + (min(12, int(month)) - 1) / 12 if month else float(year) + 0.5
        for year, month in re.findall(r"(20\d\d)(?:[-/](\d{1,2}))?(?!\d)", date)
    ]
    return sum(months) / len(months) if months else UNKNOWN_YEAR


def read_framework(
    framework: str, date: str, generation: Generation, precision: Precision, recompute: str
) -> TrainingSoftware:
    """The software that text and date describe. An unknown framework counts as current PyTorch, not compiled."""
    description = framework.lower()
    year = year_of(date)
    if "deepspeed" in description and "megatron" in description:
        return _megatron("megatron-deepspeed", 2021.0, generation)
    if re.search(r"nemo|dgx cloud|dgxc|megatron-?core|mcore|megatron bridge|transformer engine", description):
        return _megatron("nemo", max(year, 2024.0), generation)
    if "megatron" in description:
        return _megatron("megatron-core" if year >= FLASH_SINCE else "megatron-lm", year, generation)
    if re.search(r"composer|foundry|mosaic", description):
        return TrainingSoftware(
            "composer",
            attention="triton",
            gradient_bytes=2,
            fused_layers=True,
            early_stop=True,
            fused_loss=True,
        )
    if "titan" in description:
        compiled = "compile" in description or precision == "fp8"
        return TrainingSoftware(
            "torchtitan",
            attention="flash",
            compiled=compiled,
            selective="layers" if "layer" in recompute else "matmuls",
            fused_layers=True,
            tensor_overlap="async" in description,
            early_stop=True,
        )
    if re.search(r"fms|foundation.model.stack", description):
        return TrainingSoftware(
            "fms",
            attention="flash",
            compiled=True,
            selective="layers",
            gradient_bytes=2,
            fused_layers=True,
            early_stop=True,
        )
    if re.search(r"jax|maxtext|pax|xla", description):
        return TrainingSoftware("xla", attention="cudnn", compiled=True, fused_layers=True)
    compiled = bool(re.search(r"compile|fused|liger|unsloth", description))
    return TrainingSoftware(
        "other",
        attention="flash" if year >= FLASH_SINCE else "unfused",
        compiled=compiled,
        fused_layers=True,
        early_stop=year >= FLASH_SINCE,
    )


def _megatron(family: str, year: float, generation: Generation) -> TrainingSoftware:
    """Megatron: fused layers by Transformer Engine and overlap since 2024, its own attention before 2023."""
    modern = year >= CUDNN_SINCE
    attention: Attention = "unfused" if year < FLASH_SINCE else "flash"
    if modern and generation in ("hopper", "blackwell"):
        attention = "cudnn"
    return TrainingSoftware(
        family,
        attention=attention,
        compiled=modern,
        data_overlap=modern,
        gradient_bytes=2 if year < 2021.2 else 4,
        fused_layers=modern,
        tensor_overlap=modern,
        sequence_parallel=modern,
        fused_loss=modern,
    )
