"""What stands on each GPU before and after every step, and that each step is legal there.

An independent check: it shares no code with the search that chose the steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from torchsplit_core.hardware import gpu_type
from torchsplit_core.hardware.host_state.validity import tenant_key
from torchsplit_core.hardware.layouts import layout_fault
from torchsplit_core.values import (
    WHOLE_GPU,
    ForeignTenant,
    InternalFault,
    PlacedProfile,
    StateGpu,
    StepAction,
    Tenant,
    TransitionStep,
    slice_name,
)

_INVERSE: Mapping[StepAction, StepAction] = {
    "stop": "start",
    "start": "stop",
    "create": "destroy",
    "destroy": "create",
    "enable_mig": "disable_mig",
    "disable_mig": "enable_mig",
}


@dataclass(frozen=True, slots=True)
class Standing:
    """A GPU's instances at one moment. A GPU that is left whole has the one instance WHOLE_GPU at 0, or none.

    `mig_enabled` None: not known, or a type without MIG. `tenants`: how often each runs, by place; unknown tenants
    are not among them.
    """

    type: str
    mig_enabled: bool | None
    places: frozenset[PlacedProfile]
    tenants: Mapping[PlacedProfile, Counter[Hashable]]


Standings = Mapping[str, Standing]
"""By the id of the GPU."""


def inverse(step: TransitionStep) -> TransitionStep:
    """The step that undoes it."""
    return replace(step, action=_INVERSE[step.action])


def place_of(step: TransitionStep) -> PlacedProfile:
    """The instance of a step that is not of MIG mode."""
    return PlacedProfile(step.profile, step.start or 0)


def first_standings(gpus: Iterable[StateGpu]) -> Standings:
    """What stands before the first step."""
    return {
        gpu.id: Standing(
            gpu.type,
            gpu.mig_enabled,
            frozenset(PlacedProfile(item.profile, item.start) for item in gpu.instances),
            {
                PlacedProfile(item.profile, item.start): Counter(map(tenant_key, item.tenants or ()))
                for item in gpu.instances
            },
        )
        for gpu in gpus
    }


def all_standings(gpus: Iterable[StateGpu], steps: Sequence[TransitionStep]) -> tuple[Standings, ...]:
    """What stands before each step, and after the last. Raises InternalFault for a step that is not legal."""
    standings = [dict(first_standings(gpus))]
    for number, step in enumerate(steps, 1):
        standing = standings[-1].get(step.gpu)
        if standing is None:
            raise InternalFault(f"step {number} of the transition is of {step.gpu}, which the state lacks")
        fault = _step_fault(standing, step)
        if fault is not None:
            raise InternalFault(f"step {number} of the transition ({step_words(step)}) is not legal: {fault}")
        standings.append({**standings[-1], step.gpu: _after(standing, step)})
    return tuple(standings)


def step_words(step: TransitionStep) -> str:
    """A step as people read it: "destroy 3g.20gb at 4 of node0/gpu1"."""
    if step.start is None:
        return f"{step.action.replace('_mig', ' MIG mode')} of {step.gpu}"
    where = f"{slice_name(step.profile, step.start)} of {step.gpu}"
    if step.action in ("create", "destroy"):
        return f"{step.action} {where}"
    return f"{step.action} {tenant_words(step.tenants)} on {where}"


def tenant_words(tenants: Iterable[Tenant | ForeignTenant]) -> str:
    """The tenants of a step by name, with stage where a model is cut."""
    names = [
        item.foreign
        if isinstance(item, ForeignTenant)
        else item.model + ("" if item.stage == item.variant else f" {item.stage}")
        for item in tenants
    ]
    return ", ".join(names) or "nobody"


def _step_fault(standing: Standing, step: TransitionStep) -> str | None:
    if step.action in ("enable_mig", "disable_mig"):
        return "an instance stands there" if standing.places else None
    place = place_of(step)
    if step.action == "create":
        if standing.mig_enabled is (place.profile == WHOLE_GPU):
            return f"MIG mode is {'on' if standing.mig_enabled else 'off'}"
        return layout_fault(gpu_type(standing.type), [*standing.places, place])
    if place not in standing.places:
        return "no such instance stands there"
    running = standing.tenants.get(place, Counter())
    if step.action == "destroy" and running:
        return "tenants run on it"
    planned = (item for item in step.tenants if isinstance(item, Tenant))
    if step.action == "stop" and Counter(map(tenant_key, planned)) - running:
        return "it stops a tenant that does not run there"
    return None


def _after(standing: Standing, step: TransitionStep) -> Standing:
    if step.action in ("enable_mig", "disable_mig"):
        return replace(standing, mig_enabled=step.action == "enable_mig")
    place = place_of(step)
    tenants = Counter(map(tenant_key, step.tenants))
    running = standing.tenants.get(place, Counter())
    match step.action:
        case "create":
            return replace(standing, places=standing.places | {place})
        case "destroy":
            others = {item: count for item, count in standing.tenants.items() if item != place}
            return replace(standing, places=standing.places - {place}, tenants=others)
        case "stop":
            return replace(standing, tenants={**standing.tenants, place: running - tenants})
        case _:
            return replace(standing, tenants={**standing.tenants, place: running + tenants})
