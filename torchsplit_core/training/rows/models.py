"""A model's sizes from its row, and from its name where the row has none."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from torchsplit_core.training.rows.fault import RowFault
from torchsplit_core.training.rows.numbers import count, number, text
from torchsplit_core.values.errors import InputFault
from torchsplit_core.values.training import Transformer

SIZES = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab")
FAR = 0.25
"""Sizes from a name must give the row's parameters this closely."""


def read_model(row: Mapping[str, str]) -> Transformer:
    """The transformer of a row. Raises RowFault where its sizes are neither said nor known by its name."""
    said = {name: count(row, name) for name in SIZES}
    billions = number(row, "params_b")
    sequence = count(row, "seq_len")
    known = _known(text(row, "model"), billions)
    if said["layers"] is None or said["hidden"] is None or said["heads"] is None:
        if known is None:
            lacking = ", ".join(name for name in ("layers", "hidden", "heads") if said[name] is None)
            raise RowFault(f"{lacking} empty, and the model's name is not known")
        said = {name: value if value is not None else int(known[name]) for name, value in said.items()}
    if sequence is None:
        raise RowFault("seq_len is empty")
    name = text(row, "model").lower()
    layers, hidden, heads = said["layers"] or 1, said["hidden"] or 1, said["heads"] or 1
    if hidden % heads:
        raise RowFault(f"hidden {hidden} is not a multiple of {heads} heads")
    if heads % (said["kv_heads"] or heads):
        raise RowFault(f"{heads} heads are not a multiple of {said['kv_heads']} kv_heads")
    experts, chosen = _experts(name, known)
    vocab = said["vocab"] or (int(known["vocab"]) if known else _vocab(name))
    try:
        return _closest(
            billions,
            layers,
            hidden,
            heads,
            said["kv_heads"] or heads,
            said["ffn"] or 4 * hidden,
            vocab,
            sequence,
            experts,
            chosen,
            name,
        )
    except InputFault as fault:
        raise RowFault(str(fault)) from None


def _closest(
    billions: float | None,
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    ffn: int,
    vocab: int,
    sequence: int,
    experts: int,
    chosen: int,
    name: str,
) -> Transformer:
    """Of gated or not, tied or not, what comes closest to the row's parameters; without them, by the name."""
    llama = bool(re.search(r"llama|mistral|mixtral|qwen|deepseek|gemma|yi-|olmo|granite|grok", name))
    options = [
        Transformer(layers, hidden, heads, kv_heads, ffn, vocab, sequence, gated, experts, chosen, tied)
        for gated in (llama, not llama)
        for tied in (not llama, llama)
    ]
    if billions is None:
        return options[0]
    # A tie within a hundredth goes to what the name says.
    return min(options, key=lambda one: round(abs(one.parameters / (billions * 1e9) - 1) / 0.02))


def _vocab(name: str) -> int:
    if re.search(r"llama.?3", name):
        return 128256
    if re.search(r"llama|mistral|mixtral", name):
        return 32000
    return 51200


def _experts(name: str, known: Mapping[str, float] | None) -> tuple[int, int]:
    if known is not None and known.get("experts", 1) > 1:
        return int(known["experts"]), int(known["experts_per_token"])
    found = re.search(r"(?<!\d)(\d{1,3})x\d+(?:\.\d+)?b", name)
    return (int(found[1]), min(2, int(found[1]))) if found and int(found[1]) > 1 else (1, 1)


@cache
def _table() -> dict[str, dict[str, float]]:
    path = files("torchsplit_core.training").joinpath("data/models.json")
    return dict(json.loads(path.read_text(encoding="utf-8"))["models"])


def _known(name: str, billions: float | None) -> Mapping[str, float] | None:
    """The sizes of a well-known model by its name, with its size in billions where the name lacks it."""
    flat = re.sub(r"[^a-z0-9.]", "", name.lower())
    for key, sizes in _table().items():
        family, _, size = key.rpartition("-")
        wanted = re.sub(r"[^a-z0-9.]", "", family)
        near = billions is not None and abs(sizes["params_b"] / billions - 1) < FAR
        named = bool(re.search(rf"(?<![\d.x]){re.escape(size)}b?(?![\d.])", flat.replace(wanted, " ", 1)))
        if flat.startswith(wanted) and (near if billions is not None else named):
            return sizes
    return None
