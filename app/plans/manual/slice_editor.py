"""The chosen place on the map of a plan by hand: its slice, and the models that run on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import streamlit as st

from app.plans.manual import edit_state as manual_state
from app.plans.manual.edit_state import EditState
from torchsplit_core.hardware import gpu_type
from torchsplit_core.pictures.numbers import escape_markdown
from torchsplit_core.planning.manual.evaluate import ManualGpu, ManualSlice, ManualTenant
from torchsplit_core.planning.manual.moves import models_with_points, placements_at, replace_slice, slice_at
from torchsplit_core.planning.request.fleet import FleetGpu
from torchsplit_core.values import WHOLE_GPU, PlanModel, PlanRequest, point_type, profile_words

ALL, ONE = "all", "one"
Place = tuple[str, int]
"""A profile and its first memory slot."""
Put = Callable[[ManualSlice | None], None]
"""Puts a slice at the chosen place, or none."""
# A selectbox takes None for "nothing chosen yet", so an open choice needs a value of its own.
NO_SLICE: Place = ("no slice", -1)
FREE = ""
BEST = 0
OPEN = ("", "")


def render(key: str, request: PlanRequest, fleet: Sequence[FleetGpu], state: EditState) -> None:
    """The choices for the chosen place; each takes effect at once."""
    given, gpu, start = _chosen(fleet, state)
    if given is None or gpu is None:
        st.caption("Choose a slice or uncut slots on the map: what may stand there is offered here.")
        return
    item = slice_at(gpu, start)
    alike = _equal_gpus(fleet, state, given, gpu)
    with st.container(border=True, key="hand-place"):
        st.markdown(f"**{escape_markdown(gpu.id)}**, {_where(given, gpu, start)}")
        ids = [gpu.id]
        if len(alike) > 1:
            scope = st.radio(
                "Change", [ONE, ALL], horizontal=True, key=f"{key} scope",
                format_func={ONE: "this GPU", ALL: f"all {len(alike)} alike"}.__getitem__,
            )  # fmt: skip
            ids = alike if scope == ALL else ids

        def put(new: ManualSlice | None) -> None:
            # The change applies to the drawn state; the place follows its slice.
            moved = replace_slice(state.now, ids, start, new)
            place = f"{new.start if new else start} {ids[0]}"
            manual_state.save(key, state.moved(moved, place))

        left, right = st.columns(2)
        with left:
            _slice(key, given, gpu, start, request, put)
        if item is not None:
            with right:
                _models(key, request, given, item, put)
            for number in range(len(item.tenants)):
                _run(key, request, given, item, number, put)


def _chosen(fleet: Sequence[FleetGpu], state: EditState) -> tuple[FleetGpu | None, ManualGpu | None, int]:
    """The GPU of the fleet, the edited GPU, and the memory slot; None and 0 for a place that is gone."""
    slot, _, name = state.place.partition(" ")
    given = next((candidate for candidate in fleet if candidate.id == name), None)
    if given is None or not slot.isdecimal() or int(slot) >= gpu_type(given.type).memory_slices:
        return None, None, 0
    gpu = next((candidate for candidate in state.now if candidate.id == name), ManualGpu(name))
    return given, gpu, int(slot)


def _equal_gpus(fleet: Sequence[FleetGpu], state: EditState, given: FleetGpu, gpu: ManualGpu) -> list[str]:
    """Ids of the GPUs of the same kind with the same slices, this one first."""
    slices = {other.id: other.slices for other in state.now}
    kin = [other.id for other in fleet if (other.type, other.layouts) == (given.type, given.layouts)]
    same = [name for name in kin if slices.get(name, ()) == gpu.slices]
    return [gpu.id, *(name for name in same if name != gpu.id)]


def _where(given: FleetGpu, gpu: ManualGpu, start: int) -> str:
    item = slice_at(gpu, start)
    if item is None:
        return f"no slice at slot {start}"
    if item.profile == WHOLE_GPU:
        return profile_words(item.profile)
    size = next((p.memory_slices for p in gpu_type(given.type).profiles if p.name == item.profile), 1)
    slots = f"slot {start}" if size == 1 else f"slots {start} to {start + size - 1}"
    return f"{item.profile} in memory {slots}"


def _slice(key: str, given: FleetGpu, gpu: ManualGpu, start: int, request: PlanRequest, put: Put) -> None:
    item = slice_at(gpu, start)
    now: Place = (item.profile, item.start) if item else NO_SLICE
    options = list(dict.fromkeys((NO_SLICE, *placements_at(given, gpu, start), now)))
    at = f"{key} slice {gpu.id} {start}"
    st.session_state[at] = now

    def change() -> None:
        profile, first = st.session_state[at]
        if (profile, first) == NO_SLICE:
            put(None)
            return
        able = models_with_points(request, given.type, profile)
        # Batch sizes and processes were chosen for the former slice.
        remaining = [tenant for tenant in (item.tenants if item else ()) if tenant.model in able]
        tenants = tuple(replace(tenant, batch_size=None, processes=None) for tenant in remaining)
        put(ManualSlice(profile, first, tenants))

    st.selectbox("Slice here", options, key=at, format_func=_format_place, on_change=change)


def _format_place(place: Place) -> str:
    if place == NO_SLICE:
        return "no slice"
    return f"{place[0]} from slot {place[1]}" if place[0] else profile_words(place[0])


def _models(key: str, request: PlanRequest, given: FleetGpu, item: ManualSlice, put: Put) -> None:
    """The models on a slice: one for exclusive slices, else several with equal shares."""
    able = models_with_points(request, given.type, item.profile)
    present = [tenant.model for tenant in item.tenants]
    options = list(dict.fromkeys((*able, *present)))
    at = f"{key} models {item.profile} {item.start}"

    def set_to(names: Sequence[str]) -> None:
        by_model = {tenant.model: tenant for tenant in item.tenants}
        tenants = tuple(replace(by_model.get(name, ManualTenant(name)), share=None) for name in names)
        put(replace(item, tenants=tenants))

    if request.sharing == "exclusive" and len(present) <= 1:
        st.session_state[at] = present[0] if present else FREE
        st.selectbox(
            "Model on it", [FREE, *options], key=at, format_func=lambda name: name or "free",
            on_change=lambda: set_to([st.session_state[at]] if st.session_state[at] != FREE else []),
        )  # fmt: skip
        return
    at += " several"
    st.session_state[at] = list(dict.fromkeys(present))
    st.multiselect(
        "Models on it", options, key=at, placeholder="free", on_change=lambda: set_to(st.session_state[at])
    )


def _run(key: str, request: PlanRequest, given: FleetGpu, item: ManualSlice, number: int, put: Put) -> None:
    """How one tenant runs: its stage where the model may be cut, its batch size."""
    tenant = item.tenants[number]
    model = next((candidate for candidate in request.models if candidate.name == tenant.model), None)
    if model is None:
        return

    def set_to(new: ManualTenant) -> None:
        put(replace(item, tenants=(*item.tenants[:number], new, *item.tenants[number + 1 :])))

    at = f"{key} {item.profile} {item.start} {number}"
    left, right = st.columns(2)
    stages = [(variant.name, stage.name) for _, variant in model.allowed_variants for stage in variant.stages]
    if len(stages) > 1:
        key_stage = f"{at} stage"
        st.session_state[key_stage] = _stage_of(model, tenant)

        def runs_as() -> None:
            variant, stage = st.session_state[key_stage]
            set_to(ManualTenant(tenant.model, variant or None, stage or None, share=tenant.share))

        label, offered = f"{tenant.model} runs as", [OPEN, *stages]
        left.selectbox(label, offered, key=key_stage, format_func=_format_stage, on_change=runs_as)
    sizes = sorted({
        point.batch_size
        for _, variant in model.allowed_variants
        for stage in variant.stages
        if tenant.stage in (None, stage.name) and tenant.variant in (None, variant.name)
        for point in stage.points
        if (point.gpu_type, point.profile) == (point_type(given.type), item.profile)
    })  # fmt: skip
    if sizes:
        key_batch = f"{at} batch"
        st.session_state[key_batch] = tenant.batch_size if tenant.batch_size in sizes else BEST
        right.selectbox(
            f"Batch of {tenant.model}", [BEST, *sizes], key=key_batch,
            format_func=lambda size: "the best" if size == BEST else str(size),
            on_change=lambda: set_to(
                replace(tenant, batch_size=st.session_state[key_batch] or None, processes=None)
            ),
        )  # fmt: skip


def _stage_of(model: PlanModel, tenant: ManualTenant) -> tuple[str, str]:
    """The variant and stage of a tenant, the first variant with the stage if it names only that."""
    for _, variant in model.allowed_variants:
        for stage in variant.stages:
            if tenant.stage == stage.name and tenant.variant in (None, variant.name):
                return variant.name, stage.name
    return OPEN


def _format_stage(place: tuple[str, str]) -> str:
    variant, stage = place
    if place == OPEN:
        return "chosen for me"
    return variant if variant == stage else f"{variant} · {stage}"
