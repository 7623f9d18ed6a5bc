"""The fields of the chosen place of a state by hand: its GPU's MIG mode and layout, its slice, and who runs there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import streamlit as st

from torchsplit_core.hardware import gpu_type
from torchsplit_core.hardware.host_state.editing import (
    Tenants,
    instance_at,
    is_divided,
    remove_gpus,
    set_instance,
    set_layout,
    set_mode,
)
from torchsplit_core.hardware.host_state.validity import has_mig, tenant_key
from torchsplit_core.hardware.layouts import maximal_multisets
from torchsplit_core.pictures.numbers import counted, escape_markdown, exact, percent
from torchsplit_core.planning.manual.moves import placements_at
from torchsplit_core.planning.manual.tenants import tenants_for, with_shares
from torchsplit_core.planning.manual.values import ManualGpu, ManualSlice
from torchsplit_core.planning.request.fleet import FleetGpu
from torchsplit_core.values import (
    WHOLE_GPU,
    ForeignTenant,
    HostState,
    PlanOutcome,
    PlanRequest,
    StateGpu,
    StateInstance,
    Tenant,
    profile_words,
    slice_name,
)

GPU, ALIKE = "gpu", "alike"
NO_SLICE = ("no slice", -1)
# A selectbox takes None for "nothing chosen yet".
NOTHING, UNKNOWN, MODEL = "nothing", "unknown", "model "
OTHER_LAYOUT = ("as drawn",)


class Change(Protocol):
    """Takes the edited state, and the place that is chosen then (None: the same)."""

    def __call__(self, state: HostState, place: str | None = None) -> None: ...


def render(
    key: str, state: HostState, place: str, plan: PlanOutcome, request: PlanRequest | None, change: Change
) -> None:
    """The fields; each takes effect at once."""
    slot, _, name = place.partition(" ")
    gpu = next((gpu for gpu in state.gpus if gpu.id == name), None)
    if gpu is None or not slot.isdecimal():
        st.caption("Choose a slice or uncut slots on the map, and set here what stands and runs there.")
        return
    start = int(slot)
    with st.container(border=True, key="state-place"):
        ids = _scope(key, state, gpu, change)
        item = instance_at(gpu, start)
        with st.container(horizontal=True, vertical_alignment="bottom"):
            _mode(key, state, gpu, ids, change)
            _layout(key, state, gpu, ids, change)
            _slice(key, state, gpu, start, ids, change)
        if item is not None or not is_divided(gpu):
            run_here = item or StateInstance(WHOLE_GPU, 0, None, ())
            ways = tenants_for(plan, request, gpu.type, run_here.profile)
            shares = request is None or request.sharing == "fractional"
            _tenants(key, state, run_here, ids, ways, change, shares=shares)


def _scope(key: str, state: HostState, gpu: StateGpu, change: Change) -> Sequence[str]:
    """The chosen GPU, or all that hold the same; with a button that takes them out."""
    alike = [other.id for other in state.gpus if _content(other) == _content(gpu)]
    ids: Sequence[str] = [gpu.id]
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(f"**{escape_markdown(gpu.id)}** · {gpu.type}", width="content")
        if len(alike) > 1:
            scope = st.segmented_control(
                "Change", [GPU, ALIKE], default=GPU, required=True, key=f"{key} scope", label_visibility="collapsed",
                format_func={GPU: "this GPU", ALIKE: f"all {len(alike)} alike"}.__getitem__,
            )  # fmt: skip
            ids = alike if scope == ALIKE else ids
        label = "Remove this GPU" if len(ids) == 1 else f"Remove {counted(len(ids), 'GPU')}"
        st.button(
            label, key="state-remove", type="tertiary", on_click=lambda: change(remove_gpus(state, ids), "")
        )
    return ids


def _content(gpu: StateGpu) -> object:
    """What makes GPUs alike: all but their names and UUIDs."""
    return gpu.type, gpu.mig_enabled, tuple(replace(item, uuid=None) for item in gpu.instances)


def _mode(key: str, state: HostState, gpu: StateGpu, ids: Sequence[str], change: Change) -> None:
    if not has_mig(gpu_type(gpu.type)):
        return
    at = f"{key} mode"
    st.session_state[at] = is_divided(gpu)

    def switch() -> None:
        change(set_mode(state, ids, is_on=bool(st.session_state[at])), f"0 {gpu.id}")

    st.segmented_control(
        "MIG mode", [True, False], key=at, format_func={True: "on", False: "off"}.__getitem__, on_change=switch,
        required=True,
    )  # fmt: skip


def _layout(key: str, state: HostState, gpu: StateGpu, ids: Sequence[str], change: Change) -> None:
    kind = gpu_type(gpu.type)
    if not is_divided(gpu) or kind.divided != "mig":
        return
    layouts = sorted(maximal_multisets(kind), key=lambda names: (len(names), names))
    now = tuple(sorted(item.profile for item in gpu.instances))
    at = f"{key} layout"
    st.session_state[at] = now if now in layouts else OTHER_LAYOUT

    def cut() -> None:
        if st.session_state[at] != OTHER_LAYOUT:
            change(set_layout(state, ids, st.session_state[at]), f"0 {gpu.id}")

    offered = layouts if now in layouts else [OTHER_LAYOUT, *layouts]
    st.selectbox(
        "Layout", offered, key=at, on_change=cut, width=260,
        format_func=_layout_words,
        help="Every layout that takes no further slice. Slices at their places stay.",
    )  # fmt: skip


def _layout_words(names: Sequence[str]) -> str:
    counts = Counter(names)
    return " + ".join(f"{count} × {name}" if count > 1 else name for name, count in reversed(counts.items()))


def _slice(key: str, state: HostState, gpu: StateGpu, start: int, ids: Sequence[str], change: Change) -> None:
    if not is_divided(gpu):
        return
    item = instance_at(gpu, start)
    hand = ManualGpu(gpu.id, tuple(ManualSlice(other.profile, other.start) for other in gpu.instances))
    now = (item.profile, item.start) if item else NO_SLICE
    options = dict.fromkeys(
        (NO_SLICE, *placements_at(FleetGpu(gpu.id, gpu.type, None, None), hand, start), now)
    )
    at = f"{key} slice"
    st.session_state[at] = now

    def put() -> None:
        place = st.session_state[at]
        if place == NO_SLICE:
            change(set_instance(state, ids, start, None))
        else:
            # What ran on another profile is not what could run on this one.
            stays = item is not None and item.profile == place[0]
            change(
                set_instance(state, ids, start, place, item.tenants if item is not None and stays else ()),
                f"{place[1]} {gpu.id}",
            )

    st.selectbox(
        f"Slice at slot {start}", list(options), key=at, on_change=put, width=160,
        format_func=lambda place: place[0] if place == NO_SLICE else slice_name(*place),
    )  # fmt: skip


def _tenants(
    key: str,
    state: HostState,
    item: StateInstance,
    ids: Sequence[str],
    ways: Mapping[str, tuple[Tenant, ...]],
    change: Change,
    *,
    shares: bool,
) -> None:
    """Who runs on an instance; `shares`: whether a further tenant is offered."""

    def put(tenants: Tenants) -> None:
        change(set_instance(state, ids, item.start, (item.profile, item.start), tenants))

    where = profile_words(item.profile)
    listed: Sequence[Tenant | ForeignTenant | None] = (None,) if item.tenants is None else item.tenants
    present = item.tenants or ()
    for number, tenant in enumerate(listed or [NOTHING]):
        with st.container(horizontal=True, vertical_alignment="bottom"):
            _who(f"{key} {number}", where, number, present, tenant, ways, put)
            if isinstance(tenant, Tenant):
                _run(f"{key} {number}", number, present, tenant, ways.get(tenant.model, ()), put)
    others = [name for name in ways if not any(isinstance(t, Tenant) and t.model == name for t in present)]
    if shares and present and others:
        at = f"{key} also"
        st.session_state[at] = None

        def add() -> None:
            planned = [tenant for tenant in present if isinstance(tenant, Tenant)]
            foreign = tuple(tenant for tenant in present if isinstance(tenant, ForeignTenant))
            both = (*planned, ways[st.session_state[at]][0])
            put((*with_shares(both, (1 / len(both),) * len(both)), *foreign))

        st.selectbox(
            "Shared with", others, key=at, on_change=add, placeholder="nobody", width=240,
            help="Tenants of one slice get equal shares first.",
        )  # fmt: skip


def _who(
    at: str,
    where: str,
    number: int,
    present: Sequence[Tenant | ForeignTenant],
    tenant: Tenant | ForeignTenant | str | None,
    ways: Mapping[str, tuple[Tenant, ...]],
    put: Callable[[Tenants], None],
) -> None:
    """Who runs there: nobody, somebody else, or a model."""
    names = dict.fromkeys((*ways, *(item.model for item in present if isinstance(item, Tenant))))
    foreign = {f"foreign {item.foreign}": item for item in present if isinstance(item, ForeignTenant)}
    now = UNKNOWN if tenant is None else NOTHING
    if isinstance(tenant, Tenant):
        now = MODEL + tenant.model
    elif isinstance(tenant, ForeignTenant):
        now = f"foreign {tenant.foreign}"
    at = f"{at} who"
    st.session_state[at] = now
    rest = (*present[:number], *present[number + 1 :])

    def choose() -> None:
        chosen = st.session_state[at]
        if chosen == UNKNOWN:
            put(None)
        elif chosen == NOTHING:
            put(rest)
        elif chosen in foreign:
            put((*present[:number], foreign[chosen], *present[number + 1 :]))
        else:
            share = tenant.share if isinstance(tenant, Tenant) else 1.0
            (new,) = with_shares((ways[chosen.removeprefix(MODEL)][0],), (share,))
            put((*present[:number], new, *present[number + 1 :]))

    words = {NOTHING: "nothing", UNKNOWN: "another tenant, not known"}
    st.selectbox(
        f"Runs on {where}", [NOTHING, UNKNOWN, *foreign, *(MODEL + name for name in names)], key=at, on_change=choose,
        format_func=lambda who: words.get(who, who.removeprefix(MODEL).removeprefix("foreign ")), width=200,
    )  # fmt: skip


def _run(
    at: str,
    number: int,
    present: Sequence[Tenant | ForeignTenant],
    tenant: Tenant,
    ways: Sequence[Tenant],
    put: Callable[[Tenants], None],
) -> None:
    """How a model runs there: its point, its share where the slice is shared, and its throughput."""

    def put_one(new: Tenant) -> None:
        put((*present[:number], new, *present[number + 1 :]))

    by_key = {tenant_key(way): way for way in (*ways, *with_shares((tenant,), (1.0,)))}
    now = tenant_key(replace(tenant, share=1.0))
    at_way, at_share, at_rate = f"{at} way", f"{at} share", f"{at} rate"
    if len(by_key) > 1:
        st.session_state[at_way] = now
        st.selectbox(
            "As", list(by_key), key=at_way, format_func=lambda way: _way_words(by_key[way]), width=220,
            on_change=lambda: put_one(*with_shares((by_key[st.session_state[at_way]],), (tenant.share,))),
        )  # fmt: skip
    if len(present) > 1 or tenant.share != 1:
        st.session_state[at_share] = tenant.share
        st.number_input(
            "Share", 0.001, 1.0, step=0.05, key=at_share, format="%.3g", width=120,
            on_change=lambda: put_one(*with_shares((tenant,), (st.session_state[at_share],))),
        )  # fmt: skip
    st.session_state[at_rate] = tenant.throughput_rps

    def set_rate() -> None:
        # A figure by hand has no basis and no interval.
        rate = st.session_state[at_rate]
        put_one(replace(tenant, throughput_rps=rate, basis=None, low_rps=None, high_rps=None))

    st.number_input(
        "Throughput, req/s", min_value=0.0, step=1.0, key=at_rate, format="%.6g", width=150, on_change=set_rate,
        help=f"Of this tenant{'' if tenant.share == 1 else f' with {percent(tenant.share)} of the slice'}. "
        f"{'By hand' if tenant.basis is None else tenant.basis.capitalize()}.",
    )  # fmt: skip


def _way_words(tenant: Tenant) -> str:
    stage = "" if tenant.stage == tenant.variant else f"{tenant.stage} · "
    processes = "" if tenant.processes == 1 else f" × {tenant.processes} processes"
    return f"{stage}batch {tenant.batch_size}{processes} · {exact(tenant.throughput_rps, 'req/s')}"
