"""The state of a plan by hand in this session: its steps, and how the map shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import streamlit as st

from torchsplit_core.planning.manual.evaluate import ManualGpu, ManualTenant
from torchsplit_core.planning.request.fleet import FleetGpu
from torchsplit_core.values import PlannedGpu, PlannedSlice, PlanOutcome, Tenant

MOST_STEPS = 100
UNKNOWN_RPS = float("nan")


@dataclass(frozen=True, slots=True)
class EditState:
    """`steps` are the states so far, the last being the table's start; `now` is that with the table's edits. `turn`
    counts how often the table began anew; `place` is the chosen place of the map."""

    steps: tuple[tuple[ManualGpu, ...], ...]
    now: tuple[ManualGpu, ...]
    turn: int = 0
    place: str = ""

    @property
    def base(self) -> tuple[ManualGpu, ...]:
        """The table's start."""
        return self.steps[-1]

    def moved(self, gpus: tuple[ManualGpu, ...], place: str) -> EditState:
        """After a move on the map; edits of the table become a step of their own."""
        edited = (self.now,) if self.now != self.base else ()
        return EditState((*self.steps, *edited, gpus)[-MOST_STEPS:], gpus, self.turn + 1, place)

    def undone(self) -> EditState:
        """After one step back: edits of the table first."""
        steps = self.steps if self.now != self.base or len(self.steps) == 1 else self.steps[:-1]
        return EditState(steps, steps[-1], self.turn + 1, self.place)


def load(key: str, start: tuple[ManualGpu, ...]) -> EditState:
    """The session's state under this key, at first `start`."""
    state = st.session_state.get(key)
    return state if isinstance(state, EditState) else EditState((start,), start)


def save(key: str, draft: EditState) -> None:
    """Store the session's state."""
    st.session_state[key] = draft


def choose(key: str, start: tuple[ManualGpu, ...], place: str) -> None:
    """Choose a place of the map."""
    save(key, replace(load(key, start), place=place))


def preview(
    gpus: Sequence[ManualGpu], fleet: Sequence[FleetGpu], plan: PlanOutcome, outcome: PlanOutcome | None
) -> PlanOutcome:
    """The GPUs as the map shows them: slices as drafted, tenants as evaluated where they could be.

    A tenant that was not evaluated has no figures (not a number), and no load.
    """
    hands = {gpu.id: gpu for gpu in gpus}
    planned = outcome.gpus if outcome else ()
    tenants = {(gpu.id, item.start): item.tenants for gpu in planned for item in gpu.slices}
    shown = []
    for fleet_gpu in fleet:
        slices = []
        for item in sorted(
            hands.get(fleet_gpu.id, ManualGpu(fleet_gpu.id)).slices, key=lambda item: item.start
        ):
            evaluated = tenants.get((fleet_gpu.id, item.start))
            drafted = tuple(_tenant(tenant, 1 / len(item.tenants)) for tenant in item.tenants)
            slices.append(PlannedSlice(item.profile, item.start, evaluated or drafted))
        shown.append(PlannedGpu(fleet_gpu.id, fleet_gpu.type, bool(slices), tuple(slices)))
    return replace(outcome or plan, gpus=tuple(shown), models=outcome.models if outcome else ())


def _tenant(tenant: ManualTenant, share: float) -> Tenant:
    return Tenant(
        tenant.model, tenant.variant or "", tenant.stage or "",
        share if tenant.share is None else tenant.share,
        tenant.batch_size or 0, tenant.processes or 0, UNKNOWN_RPS, None,
    )  # fmt: skip
