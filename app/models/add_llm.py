"""Adds an LLM to a scenario: a published one, or the sizes of a config.json."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from app.session import scenario
from app.session.result_kind import SCENARIO
from app.session.unsaved import begin
from app.session.workspace import names, read
from app.shell import frame, navigation
from torchsplit_core.llm.config import read_config
from torchsplit_core.llm.memory import weight_bytes
from torchsplit_core.llm.published import decoder_names, published_decoder
from torchsplit_core.pictures.numbers import short
from torchsplit_core.planning.request.edit import validated_request
from torchsplit_core.planning.request.fleet_text import parse_fleet
from torchsplit_core.sizing.use_cases import USE_CASES
from torchsplit_core.values import InputFault, LlmModel, LognormalTokens, PlanModel, PlanRequest
from torchsplit_core.values.llm.decoder import DecoderSizes
from torchsplit_core.values.names import free_name
from torchsplit_core.values.units import GIB
from torchsplit_core.workspace.store import Workspace

OWN_CONFIG = "a config.json of mine"
NEW_SCENARIO = "a new scenario"
FLEET = "4xH100-SXM5-80GB:either"
"""Of a new scenario: to begin with."""
SPREAD = 0.6
NOT_MODELLED = (
    "Not modelled: speculative decoding, LoRA, prefill apart from decode, groups of GPUs over several nodes. "
    "Untested on hardware."
)


def render(workspace: Workspace) -> None:
    """Name, sizes and use of an LLM, and the scenario that gets it."""
    left, right = st.columns(2)
    chosen = left.selectbox("LLM", [*decoder_names(), OWN_CONFIG], key="llm-decoder")
    with frame.fault_boundary():
        sizes = _sizes(chosen)
        if sizes is None:
            st.info("Drop the config.json of its repository above: it says layers, heads and widths.")
            return
        st.caption(_about(sizes))
        name = right.text_input("Name", "chat", key="llm-name")
        use = left.selectbox("Requests like", list(USE_CASES), key="llm-use")
        rate = right.number_input("Rate, requests/s", 0.001, 1e6, 10.0, key="llm-rate")
        known = names(workspace, "plan_request")
        into = left.selectbox("Add it to", [*known, NEW_SCENARIO], key="llm-scenario")
        fleet = right.text_input("GPUs", FLEET, key="llm-fleet") if into == NEW_SCENARIO else ""
        st.caption(NOT_MODELLED)
        if st.button("Add the LLM and plan", type="primary", key="llm-add"):
            _add(workspace, _model(name, sizes, use, rate), None if into == NEW_SCENARIO else into, fleet)


def _sizes(chosen: str) -> DecoderSizes | None:
    if chosen != OWN_CONFIG:
        return published_decoder(chosen)
    file = st.file_uploader("config.json", type=["json"], key="llm-config")
    if file is None:
        return None
    try:
        return read_config(file.getvalue().decode(), file.name)
    except UnicodeDecodeError:
        raise InputFault(file.name, "is no text in UTF-8", "Choose the model's config.json.") from None


def _about(sizes: DecoderSizes) -> str:
    keys = short(sizes.kv_bytes_per_token / 1024)
    longest = (
        "context not given" if sizes.max_model_len is None else f"context of {sizes.max_model_len:,} tokens"
    )
    return (
        f"{short(sizes.parameters / 1e9)} billion parameters, weights of {short(weight_bytes(sizes, 1) / GIB)} GiB in "
        f"{sizes.dtype}, keys and values of {keys} KiB a token, {longest}. LLM placements › Size says what it fits."
    )


def _model(name: str, sizes: DecoderSizes, use: str, rate: float) -> PlanModel:
    usual = USE_CASES[use]
    llm = LlmModel(
        sizes, LognormalTokens(float(usual.prompt), SPREAD), LognormalTokens(float(usual.output), SPREAD),
        max_ttft_ms=usual.max_ttft_ms, max_tpot_ms=usual.max_tpot_ms,
    )  # fmt: skip
    if not name.strip():
        raise InputFault("Name", "is empty", "Give the LLM a name, for example chat.")
    return PlanModel(name.strip(), demand_rps=rate, llm=llm)


def _add(workspace: Workspace, model: PlanModel, title: str | None, fleet: str) -> None:
    if title is None:
        request = PlanRequest(parse_fleet(fleet, "GPUs"), (model,))
        begin(workspace)
        title = free_name(model.name, names(workspace, "plan_request"))
    else:
        stored: PlanRequest = read(workspace, "plan_request", title)
        taken = [other.name for other in stored.models]
        request = replace(stored, models=(*stored.models, replace(model, name=free_name(model.name, taken))))
    workspace.put("plan_request", title, validated_request(request))
    SCENARIO.choose(workspace, title)
    before = workspace.find("plan", title)
    scenario.start_plan(workspace, title)
    scenario.await_plan(workspace, title, before)
    navigation.go("Plan", title)
