"""Why a request has no plan, and the changes that make it feasible, each a button."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from app.plans.summary import describe_conflict, describe_relaxation
from app.session import draft as drafts
from app.session.workspace import read
from torchsplit_core.pictures.numbers import THIN, counted, escape_markdown, short
from torchsplit_core.planning.infeasibility.notes import NO_CONFLICT, NO_RELAXATION, SMALLER, unsettled_notes
from torchsplit_core.planning.infeasibility.repairs import Repair, find_repairs, repair_requests
from torchsplit_core.planning.request import edit
from torchsplit_core.values import PlanOutcome, PlanRequest, Relaxation
from torchsplit_core.workspace.plan_cache.cache import PlanCache
from torchsplit_core.workspace.store import Workspace

MOST_NAMED = 3
"""Models that a button names; the rest are counted."""
OPEN_WORDS = {
    SMALLER: "A smaller change may exist",
    NO_RELAXATION: "No change of a number that would help is known yet",
    NO_CONFLICT: "Which demands clash is not settled yet",
}
"""What the page says while the reasons of an infeasible request are unsettled."""


def render(
    workspace: Workspace, name: str, request: PlanRequest | None, plan: PlanOutcome, *, searching: bool
) -> None:
    """Why there is no plan and what would help; only a proven change is called the smallest."""
    unsettled = unsettled_notes(plan)
    with st.container(border=True):
        st.header("No plan can give what is asked on this fleet", anchor=False)
        relaxations = () if request is None else relaxations_of(workspace, request, plan)
        st.session_state[_seen(workspace, name)] = len(relaxations)
        clashing = sum(len(conflict.demands) for conflict in plan.conflicts)
        clash = f"These {clashing} demands clash. " if clashing > 1 else ""
        st.markdown(f"{clash}{_lead_text(relaxations, unsettled, searching)}")
        if relaxations:
            _chips(workspace, name, plan, relaxations)
        for note in unsettled:
            st.caption(f"{OPEN_WORDS[note]}{', still searching' if searching else ''}.")
        for text in plan.warnings:
            if text not in unsettled:
                st.caption(escape_markdown(text))
        if plan.conflicts:
            with st.expander("Which demands clash", expanded=len(plan.conflicts) == 1 and clashing < 3):
                for conflict in plan.conflicts:
                    first, demands = describe_conflict(conflict)
                    st.markdown(
                        f"- **{first}:** {escape_markdown(demands)}. {escape_markdown(conflict.message)}"
                    )


def relaxations_of(workspace: Workspace, request: PlanRequest, plan: PlanOutcome) -> tuple[Repair, ...]:
    """The known repairs in the order of their buttons, always with the plan's own relaxation."""
    relaxations = find_repairs(request, plan, PlanCache(workspace).lookup)
    if plan.least_relaxation and not any(relaxation.kind == "relaxation" for relaxation in relaxations):
        eased = edit.with_relaxation(request, plan.least_relaxation)
        return (Repair("relaxation", eased, plan), *relaxations)
    return relaxations


def may_find_relaxation(workspace: Workspace, request: PlanRequest, plan: PlanOutcome) -> bool:
    """Whether a search could still add a repair."""
    known_answer = PlanCache(workspace).lookup
    return any(known_answer(question) is None for question in repair_requests(request, plan, known_answer))


def has_new_relaxation(workspace: Workspace, name: str, request: PlanRequest, plan: PlanOutcome) -> bool:
    """Whether there are other repairs than those on screen."""
    return len(relaxations_of(workspace, request, plan)) != st.session_state.get(_seen(workspace, name))


def _lead_text(relaxations: Sequence[Repair], unsettled: Sequence[str], searching: bool) -> str:
    """The text before the buttons, or why there are none."""
    if relaxations:
        proven = relaxations[0].kind == "relaxation" and SMALLER not in unsettled
        return "The cheapest change of figures comes first:" if proven else "What makes it possible:"
    if searching:
        return "Looking for the smallest change that gives a plan."
    return "" if unsettled else "No change of a number helps: drop a pair, or add a GPU."


def _chips(workspace: Workspace, name: str, plan: PlanOutcome, relaxations: Sequence[Repair]) -> None:
    with st.container(horizontal=True, key="ways-out"):
        for number, relaxation in enumerate(relaxations):
            if st.button(
                escape_markdown(chip_label(relaxation, plan)), key=f"way-out-{number}",
                help=escape_markdown(chip_help(relaxation, plan)),
                type="primary" if number == 0 else "secondary",
            ):  # fmt: skip
                stored = read(workspace, "plan_request", name)
                drafts.change(workspace, name, stored, relaxation.request)
                st.rerun()


def chip_label(relaxation: Repair, plan: PlanOutcome) -> str:
    """The change on a button: "densenet121 -11 %, resnet50 -6 %", "One more A100-80GB", "All minima × 0.89"."""
    if relaxation.kind == "gpus":
        return f"{'One' if relaxation.added_gpus == 1 else relaxation.added_gpus} more {relaxation.gpu_type}"
    if relaxation.kind == "scale":
        return f"All minima × {relaxation.scale:g}"
    if relaxation.kind == "limits":
        several = len(relaxation.models) > 1
        whose = (
            f"Limits of {len(relaxation.models)} models" if several else f"Limit of {relaxation.models[0]}"
        )
        return f"{whose} × {relaxation.scale:g}"
    changes = sorted(plan.least_relaxation or (), key=lambda change: abs(_relative(change)), reverse=True)
    texts = [_format_relaxation(change) for change in changes[:MOST_NAMED]]
    if len(changes) > MOST_NAMED:
        texts.append(f"{counted(len(changes) - MOST_NAMED, 'more change')}")
    return ", ".join(texts)


def chip_help(relaxation: Repair, plan: PlanOutcome) -> str:
    """What pressing the button does, with the figures."""
    if relaxation.kind == "gpus":
        return f"Add {relaxation.added_gpus} × {relaxation.gpu_type} to the fleet, in a draft."
    if relaxation.kind == "scale":
        return "Lower every minimum by the same factor, the largest for which a plan is known, in a draft."
    if relaxation.kind == "limits":
        names = ", ".join(relaxation.models)
        return (
            f"Raise the limit of {names} {relaxation.scale:g} times, for which a plan is known, in a draft."
        )
    return "; ".join(describe_relaxation(change) for change in plan.least_relaxation or ()) + ", in a draft."


def _relative(change: Relaxation) -> float:
    return change.new / change.old - 1 if change.old else 0.0


def _format_relaxation(change: Relaxation) -> str:
    """The relative change of a figure; the words name a limit, since minima are the rule."""
    if not change.new:
        return f"{change.model} without a minimum"
    share = _relative(change)
    sign = "−" if share < 0 else "+"
    what = "" if change.demand == "min_throughput_rps" else " limit"
    return f"{change.model}{what} {sign}{short(float(f'{abs(100 * share):.2g}'))}{THIN}%"


def _seen(workspace: Workspace, name: str) -> str:
    return f"ways out on screen {workspace.id} {name}"
