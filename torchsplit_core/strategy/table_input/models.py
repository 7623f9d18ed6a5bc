"""A model's sizes from its row, or from its name if the row lacks them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files

from torchsplit_core.strategy.table_input.cell_values import count, number, text
from torchsplit_core.strategy.table_input.errors import RowError
from torchsplit_core.values.training import Transformer

SIZES = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab")
GATED = r"llama|mistral|mixtral|qwen|deepseek|gemma|yi-|olmo|granite|grok"
"""Families with gated feed-forwards and untied embeddings."""
PARAMETERS_TOLERANCE = 0.25
"""Largest relative difference between the parameters of the sizes from a name and the row's."""


def read_model(row: Mapping[str, str]) -> Transformer:
    """The transformer of a row. Raises RowError if its sizes are neither given nor known by its name."""
    sizes = {name: count(row, name) for name in SIZES}
    billions = number(row, "params_b")
    sequence = count(row, "seq_len")
    known = _known(text(row, "model"), billions)
    if sizes["layers"] is None or sizes["hidden"] is None or sizes["heads"] is None:
        if known is None:
            lacking = ", ".join(name for name in ("layers", "hidden", "heads") if sizes[name] is None)
            raise RowError(f"{lacking} empty, and the model's name is not known")
        sizes = {name: value if value is not None else int(known[name]) for name, value in sizes.items()}
    if sequence is None:
        raise RowError("seq_len is empty")
    name = text(row, "model").lower()
    layers, hidden, heads = sizes["layers"] or 1, sizes["hidden"] or 1, sizes["heads"] or 1
    if hidden % heads:
        raise RowError(f"hidden {hidden} is not a multiple of {heads} heads")
    if heads % (sizes["kv_heads"] or heads):
        raise RowError(f"{heads} heads are not a multiple of {sizes['kv_heads']} kv_heads")
    vocab = sizes["vocab"] or (int(known["vocab"]) if known else _vocab(name))
    llama = gated_name(name)
    ffn, kv_heads = sizes["ffn"] or 4 * hidden, sizes["kv_heads"] or heads
    active = number(row, "active_params_b")
    options = []
    for gated in (llama, not llama):
        for tied in (not llama, llama):
            dense = Transformer(layers, hidden, heads, kv_heads, ffn, vocab, sequence, gated, 1, 1, tied)
            experts, chosen = _experts(name, known, dense, billions, active)
            options.append(replace(dense, experts=experts, experts_per_token=chosen))
    if billions is None:
        return options[0]
    return min(options, key=lambda option: _distance(option, billions, active))


def gated_name(name: str) -> bool:
    """Whether a model of that name has gated feed-forwards and untied embeddings."""
    return bool(re.search(GATED, name.lower()))


def _distance(model: Transformer, billions: float, active: float | None) -> int:
    """Distance of the parameters from the row's, in steps: in a tie the sizes of the name win, which come first.

    Numbers of experts are chosen to fit, so with experts the steps are finer and the active parameters count.
    """
    off = abs(model.parameters / (billions * 1e9) - 1)
    if model.experts == 1 or active is None:
        return round(off / 0.02)
    idle = model.layers * (model.experts - model.experts_per_token) * model.expert_parameters
    off += abs((model.parameters - idle) / (active * 1e9) - 1)
    if model.experts & (model.experts - 1):
        off += 0.01  # numbers of experts are powers of two nearly always
    return round(off / 0.002)


def _experts(
    name: str,
    known: Mapping[str, float] | None,
    dense: Transformer,
    billions: float | None,
    active: float | None,
) -> tuple[int, int]:
    """Experts, and how many each token uses: by the known model, by "8x7b", or by all and active parameters."""
    if known is not None and known.get("experts", 1) > 1:
        return int(known["experts"]), int(known["experts_per_token"])
    match = re.search(r"(?<!\d)(\d{1,3})x\d+(?:\.\d+)?b", name)
    if match and int(match[1]) > 1:
        return int(match[1]), min(2, int(match[1]))
    if billions is None or active is None or active >= 0.95 * billions:
        return 1, 1
    experts_weights = dense.layers * dense.expert_parameters
    rest = dense.parameters - experts_weights
    experts = max(1, round((billions * 1e9 - rest) / experts_weights))
    return experts, min(experts, max(1, round((active * 1e9 - rest) / experts_weights)))


def _vocab(name: str) -> int:
    if re.search(r"llama.?3", name):
        return 128256
    if re.search(r"llama|mistral|mixtral", name):
        return 32000
    return 51200


@cache
def _table() -> dict[str, dict[str, float]]:
    path = files("torchsplit_core.strategy").joinpath("data/models.json")
    return dict(json.loads(path.read_text(encoding="utf-8"))["models"])


def _known(name: str, billions: float | None) -> Mapping[str, float] | None:
    """The sizes of a well-known model by its name, with `billions` for a name without its size."""
    flat = re.sub(r"[^a-z0-9.]", "", name.lower())
    for key, sizes in _table().items():
        family, _, size = key.rpartition("-")
        wanted = re.sub(r"[^a-z0-9.]", "", family)
        near = billions is not None and abs(sizes["params_b"] / billions - 1) < PARAMETERS_TOLERANCE
        named = bool(re.search(rf"(?<![\d.x]){re.escape(size)}b?(?![\d.])", flat.replace(wanted, " ", 1)))
        if flat.startswith(wanted) and (near if billions is not None else named):
            return sizes
    return None
