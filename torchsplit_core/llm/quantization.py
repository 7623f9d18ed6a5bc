"""What type the weights of a config.json have, quantised or not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchsplit_core.values import InputFault, quoted
from torchsplit_core.values.llm.decoder import WeightType

TYPES: Mapping[str, WeightType] = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
"""Of torch_dtype."""

_OF_BITS: Mapping[int, WeightType] = {4: "int4", 8: "int8"}
_CHOOSE = "Choose the config.json of a checkpoint in 16 bits, FP8, INT8 or 4 bits."


def weight_types(config: Mapping[str, Any], origin: str) -> tuple[WeightType, WeightType | None]:
    """The type of the layers' weights, and that of attention's where the quantisation leaves them alone.

    Raises InputFault for a type or a quantisation that is not known.
    """
    plain = _plain_type(config, origin)
    settings = config.get("quantization_config")
    if not settings:
        return plain, None
    where = f"{origin}: quantization_config"
    if not isinstance(settings, Mapping):
        raise InputFault(where, "is not a JSON object", _CHOOSE)
    quantised = _quantized_type(settings, where)
    ignored = [*_texts(settings.get("ignore")), *_texts(settings.get("modules_to_not_convert"))]
    return quantised, plain if any(
        "attn" in name or "attention" in name.lower() for name in ignored
    ) else None


def _plain_type(config: Mapping[str, Any], origin: str) -> WeightType:
    name = config.get("torch_dtype") or config.get("dtype")
    if not isinstance(name, str) or name.removeprefix("torch.") not in TYPES:
        raise InputFault(
            f"{origin}: torch_dtype",
            f"{quoted(name)} is none of {', '.join(TYPES)}" if name else "is missing",
            "Check the config.json.",
        )
    return TYPES[name.removeprefix("torch.")]


def _quantized_type(settings: Mapping[str, Any], where: str) -> WeightType:
    method = settings.get("quant_method")
    if method in ("fp8", "fbgemm_fp8"):
        return "fp8"
    if method == "mxfp4":
        return "int4"
    if method in ("awq", "gptq", "gptq_marlin", "auto-round"):
        return _of_bits(settings.get("bits", settings.get("w_bit")), where)
    if method == "bitsandbytes":
        return "int4" if settings.get("load_in_4bit") else "int8"
    if method == "modelopt" and "FP8" in str(settings.get("quant_algo", "")):
        return "fp8"
    if method == "compressed-tensors":
        return _compressed_type(settings, where)
    raise InputFault(where, f"quant_method {quoted(method)} is not known", _CHOOSE)


def _compressed_type(settings: Mapping[str, Any], where: str) -> WeightType:
    form = settings.get("format")
    for group in (settings.get("config_groups") or {}).values():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if isinstance(weights, Mapping):
            bits, kind = weights.get("num_bits"), weights.get("type")
            return "fp8" if (bits, kind) == (8, "float") else _of_bits(bits, where)
    if form in ("float-quantized", "naive-quantized"):
        return "fp8"
    if form == "int-quantized":
        return "int8"
    if form in ("pack-quantized", "marlin-24"):
        return "int4"
    raise InputFault(where, f"format {quoted(form)} is not known", _CHOOSE)


def _of_bits(bits: object, where: str) -> WeightType:
    if not isinstance(bits, int) or bits not in _OF_BITS:
        raise InputFault(where, f"weights of {quoted(bits)} bits are not known", _CHOOSE)
    return _OF_BITS[bits]


def _texts(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
