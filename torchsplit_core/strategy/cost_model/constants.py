"""The constants of the estimate, from data/constants.json, which gives the source or the fit of each."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Constants:
    """Shares of a peak, seconds and counts that sizes do not determine. Meanings and sources: data/constants.json."""

    gemm_share_ampere: float
    gemm_share_hopper: float
    gemm_depth: float
    gemm_wave: float
    launch_s: float
    memory_share: float
    eight_bit_gain: float
    power_exponent: float
    triton_share_ampere: float
    triton_share_hopper: float
    flash_share_ampere: float
    flash_share_hopper: float
    cudnn_share: float
    hidden_passes: float
    ffn_passes: float
    unfused_factor: float
    softmax_passes: float
    logit_bytes: float
    host_eager_s: float
    host_compiled_s: float
    inside_share: float
    inside_latency_s: float
    tensor_exposed: float
    between_share: float
    hop_s: float
    sharding_exposed: float
    data_exposed: float
    optimizer_bytes: float
    fixed_s: float
    reserve_gib: float
    fragmentation: float


@cache
def constants() -> Constants:
    """The fitted constants."""
    text = files("torchsplit_core.strategy").joinpath("data/constants.json").read_text(encoding="utf-8")
    table = json.loads(text)["constants"]
    return Constants(**{field.name: float(table[field.name]["value"]) for field in fields(Constants)})
