"""What is sized: model, requests, limits, GPU types, and the engine's settings; the workspace keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import streamlit as st

from app.session.workspace import remember
from app.shell import frame
from app.shell.inputs import text_of
from torchsplit_core.hardware import peak_names, peaks
from torchsplit_core.llm.config import read_config
from torchsplit_core.llm.published import decoder_names, published_decoder, quantized
from torchsplit_core.sizing.request import (
    DEFAULT_TYPES,
    EngineSettings,
    OfferedGpu,
    SizingRequest,
    TokenLimits,
)
from torchsplit_core.sizing.use_cases import USE_CASES
from torchsplit_core.values import InputFault
from torchsplit_core.workspace.store import Workspace

SETTING = "llm sizing"
"""The workspace's setting with the inputs of its last sizing."""
CUSTOM_CONFIG = "a config.json of mine"
AS_MODEL = "the model's"
PRECISIONS = (AS_MODEL, "bf16", "fp8", "int8", "int4")
KV_PRECISIONS = ("16 bits", "fp8")


OWN = "Own"
FIRST: Mapping[str, Any] = {
    "model": "llama-3.1-8b", "config": None, "rate": 10.0, "prompt": 1024, "output": 256, "cached": 0, "ttft": 500.0,
    "tpot": 50.0, "types": list(DEFAULT_TYPES), "prices": {}, "precision": AS_MODEL, "kv": KV_PRECISIONS[0],
    "seqs": 128, "batched": 2048, "share": 0.9,
}  # fmt: skip
"""Inputs of a workspace that has none."""


def stored_inputs(workspace: Workspace) -> Mapping[str, Any] | None:
    """The inputs of the workspace's last sizing; None before the first."""
    stored = workspace.setting(SETTING)
    return stored if isinstance(stored, dict) and stored.keys() == FIRST.keys() else None


def keep_inputs(workspace: Workspace, inputs: Mapping[str, Any]) -> None:
    """Store the inputs for later sessions."""
    remember(workspace, SETTING, dict(inputs))


def render(workspace: Workspace, stored: Mapping[str, Any]) -> dict[str, Any]:
    """The controls, which begin with these inputs; the inputs as they stand now."""
    mark = workspace.id
    for name, value in stored.items():
        st.session_state.setdefault(_key(name, mark), value)
    inputs = dict(stored)
    with st.container(border=True):
        st.header("Model", anchor=False)
        inputs |= _model(stored, mark)
    with st.container(border=True):
        st.header("Requests", anchor=False)
        _use_case(mark)
        inputs["rate"] = _number("Rate, requests/s", "rate", mark, 0.001, 1e6)
        inputs["prompt"] = _count("Prompt, tokens", "prompt", mark, 1)
        inputs["output"] = _count("Answer, tokens", "output", mark, 1)
        inputs["cached"] = _count(
            "Of the prompt cached, tokens", "cached", mark, 0,
            help="Tokens of the prompt that the prefix cache holds: a system prompt, the history of a chat.",
        )  # fmt: skip
        inputs["ttft"] = _limit("Max TTFT, ms", "ttft", mark)
        inputs["tpot"] = _limit("Max TPOT, ms", "tpot", mark)
    with st.container(border=True):
        st.header("GPU types", anchor=False)
        inputs |= _types(mark)
    with st.expander("Engine"):
        for label, name, options in (("Weights", "precision", PRECISIONS), ("KV cache", "kv", KV_PRECISIONS)):
            inputs[name] = st.selectbox(label, options, key=_key(name, mark), persist_state="session")
        inputs["seqs"] = _count("max_num_seqs", "seqs", mark, 1)
        inputs["batched"] = _count("max_num_batched_tokens", "batched", mark, 1)
        inputs["share"] = _number("gpu_memory_utilization", "share", mark, 0.05, 1.0)
    return inputs


def request_of(inputs: Mapping[str, Any]) -> SizingRequest:
    """The request that the inputs make. Raises InputFault."""
    missing = [
        name
        for name in ("rate", "prompt", "output", "cached", "seqs", "batched", "share")
        if inputs[name] is None
    ]
    if missing:
        raise InputFault(_LABELS[missing[0]], "is empty", "Fill it in.")
    if inputs["model"] == CUSTOM_CONFIG:
        if inputs["config"] is None:
            raise InputFault(
                "config.json", "is missing, and a model of your own is described by it", "Choose the file."
            )
        sizes = read_config(inputs["config"], "config.json")
    else:
        sizes = published_decoder(inputs["model"])
    if inputs["precision"] != AS_MODEL:
        sizes = quantized(sizes, inputs["precision"])
    if inputs["kv"] == "fp8":
        sizes = replace(sizes, kv_dtype="fp8")
    prices = inputs["prices"]
    return SizingRequest(
        model="your model" if inputs["model"] == CUSTOM_CONFIG else inputs["model"],
        sizes=sizes,
        gpus=tuple(OfferedGpu(name, prices.get(name)) for name in inputs["types"]),
        rate_rps=inputs["rate"],
        prompt_tokens=inputs["prompt"],
        output_tokens=inputs["output"],
        cached_tokens=inputs["cached"],
        limits=TokenLimits(inputs["ttft"], inputs["tpot"]),
        settings=EngineSettings(inputs["seqs"], inputs["batched"], inputs["share"]),
    )


_LABELS = {
    "rate": "Rate", "prompt": "Prompt", "output": "Answer", "cached": "Of the prompt cached", "seqs": "max_num_seqs",
    "batched": "max_num_batched_tokens", "share": "gpu_memory_utilization",
}  # fmt: skip


def _model(stored: Mapping[str, Any], mark: str) -> dict[str, Any]:
    names = [*decoder_names(), CUSTOM_CONFIG]
    if st.session_state[_key("model", mark)] not in names:
        st.session_state[_key("model", mark)] = FIRST["model"]
    model = st.selectbox("LLM", names, key=_key("model", mark), persist_state="session")
    config = stored["config"]
    if model == CUSTOM_CONFIG:
        file = st.file_uploader("config.json", type=["json"], key=f"size-file {mark}", max_upload_size=1)
        if file is not None:
            with frame.fault_boundary():
                config = text_of(file.getvalue(), file.name)
        elif config is not None:
            st.caption("The file of the last sizing is used.")
    return {"model": model, "config": config}


def _use_case(mark: str) -> None:
    """Buttons that fill in lengths and limits."""
    key = f"size-use {mark}"

    def fill() -> None:
        case = USE_CASES.get(st.session_state[key])
        if case is not None:
            values = {
                "prompt": case.prompt,
                "output": case.output,
                "cached": 0,
                "ttft": case.max_ttft_ms,
                "tpot": case.max_tpot_ms,
            }
            for name, value in values.items():
                st.session_state[_key(name, mark)] = value

    state = st.session_state
    now = [state[_key(name, mark)] for name in ("prompt", "output", "ttft", "tpot")]
    alike = (
        name
        for name, case in USE_CASES.items()
        if now == [case.prompt, case.output, case.max_ttft_ms, case.max_tpot_ms]
    )
    state[key] = next(alike, None)
    st.pills(
        "Use",
        list(USE_CASES),
        key=key,
        on_change=fill,
        help="Fills in typical lengths and limits; change any of them below.",
    )


def _types(mark: str) -> dict[str, Any]:
    known = [
        name
        for name in peak_names()
        if peaks(name).memory_gib is not None and peaks(name).memory_gb_per_s is not None
    ]
    key = _key("types", mark)
    st.session_state[key] = [name for name in st.session_state[key] if name in known]
    types: list[str] = st.multiselect(
        "Types", known, key=key, placeholder="Choose", persist_state="session", label_visibility="collapsed"
    )
    prices: dict[str, float] = {}
    with st.expander("Prices an hour"):
        for name in types:
            stored_key = f"size-price {name} {mark}"
            st.session_state.setdefault(stored_key, st.session_state[_key("prices", mark)].get(name))
            price = st.number_input(
                name, 0.0, 1e6, None, key=stored_key, placeholder="none", persist_state="session"
            )
            if price is not None:
                prices[name] = price
    return {"types": types, "prices": prices}


def _key(name: str, mark: str) -> str:
    return f"size-{name} {mark}"


def _number(label: str, name: str, mark: str, least: float, most: float) -> float | None:
    return st.number_input(label, least, most, key=_key(name, mark), persist_state="session", format="%.6g")


def _count(label: str, name: str, mark: str, least: int, help: str | None = None) -> int | None:
    return st.number_input(label, least, 10_000_000, key=_key(name, mark), persist_state="session", help=help)


def _limit(label: str, name: str, mark: str) -> float | None:
    return st.number_input(
        label,
        0.1,
        1e7,
        None,
        key=_key(name, mark),
        persist_state="session",
        placeholder="no limit",
        format="%.6g",
    )
