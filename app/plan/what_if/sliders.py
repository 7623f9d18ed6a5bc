"""What if: sliders that plan again as they move, in this session alone, until the user keeps what came out.

A move shows a quick verified plan; once the sliders rest, its proof follows in the background.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import streamlit as st

from app.components.live_slider import live_slider
from app.format.numbers import exact, plain
from app.plan.summary import SOLVED
from app.plan.what_if import proof
from app.session.workspace import read
from app.shell import frame
from app.shell.replan import plan_again
from torchsplit_core.planning.comparison.compare import compare
from torchsplit_core.planning.manual.what_if import plan_from
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import InputFault, PlanModel, PlanOutcome, PlanRequest
from torchsplit_core.workspace.store import Workspace

QUICK_S = 0.15
"""Seconds of search behind a slider: a verified plan, not its proof."""
FACTORS = (0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
"""What a slider offers, as multiples of the stored value."""
MOST_GPUS = 4096
MOST_LINES = 12
MOST_KINDS = 3
"""Kinds of GPU with a slider of their own; the fleet's table has all."""


@dataclass(frozen=True)
class Trial:
    """A request that was not stored, its quick plan, and in words what differs from the stored request."""

    ground: str
    request: PlanRequest
    outcome: PlanOutcome | None
    changes: tuple[str, ...]
    fault: str = ""


def trial(workspace: Workspace, name: str, request: PlanRequest | None) -> Trial | None:
    """What this session tries on top of the stored request; None where it tries nothing."""
    found = st.session_state.get(_key(workspace, name))
    if request is None or not isinstance(found, Trial) or found.ground != request_hash(request):
        return None
    return found


def show(workspace: Workspace, name: str, request: PlanRequest) -> None:
    """The sliders: a model's weight and demand, and how many GPUs."""
    tried = trial(workspace, name, request)
    with st.container(border=True, key="what-if"):
        st.header("What if", anchor=False)
        names = [model.name for model in request.models]
        if not names:
            st.caption("Add a model first.")
            return
        chosen = st.selectbox("Model", names, key=f"what-if-model {name}", label_visibility="collapsed")
        current = tried.request if tried else request
        stored = _model(request, chosen)
        for what, label in (("weight", "Weight"), ("demand_rps", "Demand, req/s")):
            _slider(workspace, name, request, current, stored, what, label)
        for place, entry in enumerate(request.gpus[:MOST_KINDS]):
            _gpus(workspace, name, request, current, place, entry.type)


def banner(
    workspace: Workspace, name: str, request: PlanRequest, plan: PlanOutcome | None, tried: Trial
) -> None:
    """What is tried, what it changes of the stored plan, and two ways out of it."""
    with st.container(border=True, horizontal=True, vertical_alignment="center", key="what-if-banner"):
        st.markdown(plain("; ".join(tried.changes)), width="stretch")
        if st.button("Keep and prove", type="primary", key="what-if-keep"):
            with frame.telling():
                proof.drop(workspace, name)
                plan_again(workspace, name, tried.request, ground=request)
        if st.button("Back", key="what-if-back"):
            forget(workspace, name)
            st.rerun()
    if tried.outcome is not None and tried.outcome.status == "feasible":
        st.fragment(_prove, run_every=proof.REST_S)(workspace, name, request)
    if plan is None or tried.outcome is None or not {plan.status, tried.outcome.status} <= set(SOLVED):
        return
    lines = compare(plan, tried.outcome).lines
    if lines:
        st.caption(plain(lines[0]))
        label = f"What changes against the stored plan: {len(lines)} differences"
        listed = st.expander(label, key="what-if-lines", on_change="rerun")
        if listed.open:
            listed.markdown("\n".join(f"- {plain(line)}" for line in lines[:MOST_LINES]))
            if len(lines) > MOST_LINES:
                listed.caption(
                    f"and {len(lines) - MOST_LINES} more: keep it as a scenario of its own to compare them."
                )


def _prove(workspace: Workspace, name: str, request: PlanRequest) -> None:
    """One look at the search for the proof of what is tried; the page is drawn anew when it stands."""
    tried = trial(workspace, name, request)
    if tried is None or tried.outcome is None:
        return
    proven = proof.follow(workspace, name, request, tried.request)
    # A search that ran out of time leaves the plan that stands.
    if proven is not None and proven.status != "timeout":
        st.session_state[_key(workspace, name)] = replace(tried, outcome=proven)
        st.rerun()


def forget(workspace: Workspace, name: str) -> None:
    """Try nothing any more; the sliders stand as stored."""
    proof.drop(workspace, name)
    st.session_state.pop(_key(workspace, name), None)
    st.session_state[_turn(workspace, name)] = st.session_state.get(_turn(workspace, name), 0) + 1


def attempt(request: PlanRequest, edited: PlanRequest, before: PlanOutcome | None = None) -> Trial:
    """The edited request with a quick verified plan; what cannot be asked says why. `before`: what stands now."""
    ground = request_hash(request)
    try:
        outcome = plan_from(edited, before, QUICK_S)
    except InputFault as fault:
        return Trial(ground, edited, None, changes(request, edited), str(fault))
    return Trial(ground, edited, outcome, changes(request, edited))


def changes(request: PlanRequest, edited: PlanRequest) -> tuple[str, ...]:
    """What the sliders changed, in words."""
    found = []
    for before, after in zip(request.models, edited.models, strict=True):
        for what, label in (("weight", "weight"), ("demand_rps", "demand")):
            old, new = getattr(before, what), getattr(after, what)
            if old != new:
                found.append(f"{label} of {before.name} {exact(old)} → {exact(new)}")
    for old, new in zip(request.gpus, edited.gpus, strict=True):
        if old.count != new.count:
            found.append(f"{old.type} {old.count} → {new.count}")
    return tuple(found)


def _slider(
    workspace: Workspace,
    name: str,
    request: PlanRequest,
    current: PlanRequest,
    stored: PlanModel,
    what: str,
    label: str,
) -> None:
    base = float(getattr(stored, what))
    options = [float(f"{base * factor:.6g}") for factor in FACTORS]
    options[FACTORS.index(1.0)] = base
    now = float(getattr(_model(current, stored.name), what))
    live_slider(
        label,
        [exact(option) for option in options],
        options.index(now if now in options else base),
        key=f"{what} {stored.name} {_place(workspace, name, request)}",
        on_move=lambda chosen: _move(workspace, name, request, current, stored.name, what, options[chosen]),
    )


def _gpus(
    workspace: Workspace, name: str, request: PlanRequest, current: PlanRequest, place: int, kind: str
) -> None:
    count = request.gpus[place].count
    most = min(MOST_GPUS, max(8, 2 * count))
    live_slider(
        f"GPUs, {kind}",
        [str(number) for number in range(1, most + 1)],
        current.gpus[place].count - 1,
        key=f"gpus {place} {_place(workspace, name, request)}",
        on_move=lambda chosen: _count(workspace, name, request, current, place, chosen + 1),
    )


def _move(
    workspace: Workspace,
    name: str,
    request: PlanRequest,
    current: PlanRequest,
    model: str,
    what: str,
    value: float,
) -> None:
    field: dict[str, Any] = {what: float(value)}
    changed = replace(_model(current, model), **field)
    models = tuple(changed if one.name == model else one for one in current.models)
    _keep(workspace, name, request, replace(current, models=models))


def _count(
    workspace: Workspace, name: str, request: PlanRequest, current: PlanRequest, place: int, count: int
) -> None:
    gpus = list(current.gpus)
    # An entry with an id of its own is one GPU; several get numbered ids.
    stored = request.gpus[place]
    gpus[place] = replace(stored, count=count, id=stored.id if count == stored.count else None)
    _keep(workspace, name, request, replace(current, gpus=tuple(gpus)))


def _keep(workspace: Workspace, name: str, request: PlanRequest, edited: PlanRequest) -> None:
    if edited == request:
        proof.drop(workspace, name)
        st.session_state.pop(_key(workspace, name), None)
    else:
        tried = trial(workspace, name, request)
        shown = tried.outcome if tried else None
        before = shown or read(workspace, "plan", name)
        st.session_state[_key(workspace, name)] = attempt(request, edited, before)


def _model(request: PlanRequest, name: str) -> PlanModel:
    return next(model for model in request.models if model.name == name)


def _key(workspace: Workspace, name: str) -> str:
    return f"what if {workspace.id} {name}"


def _turn(workspace: Workspace, name: str) -> str:
    return f"what if turn {workspace.id} {name}"


def _place(workspace: Workspace, name: str, request: PlanRequest) -> str:
    """The ground of the sliders: another request, or a way back, is another."""
    turn = st.session_state.get(_turn(workspace, name), 0)
    return f"{workspace.id} {name} {request_hash(request)[:12]} {turn}"
