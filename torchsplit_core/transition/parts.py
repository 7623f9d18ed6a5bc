"""The change of each GPU in parts that do not wait for one another.

Instances that go and instances that come depend on each other where they share a memory slot. What hangs together so
is a part: its instances stop and go, then the new ones come and start. Parts of one GPU may run in any order, unless
compute slices or numbers of instances are short meanwhile, or MIG mode is switched: then its change is one part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from torchsplit_core.hardware import gpu_type
from torchsplit_core.hardware.host_state.assignment import Match, is_mig_on
from torchsplit_core.hardware.host_state.validity import has_mig, member_key
from torchsplit_core.transition.times import ChangeTimes
from torchsplit_core.values import (
    WHOLE_GPU,
    ForeignTenant,
    GpuType,
    PlannedSlice,
    StateInstance,
    StepAction,
    Tenant,
    TransitionStep,
)

AnyTenant = Tenant | ForeignTenant


@dataclass(frozen=True, slots=True)
class ChangePart:
    """Steps of one GPU that stay together, in order. `removed`: the instances that go, to be bridged elsewhere."""

    gpu: str
    type: str
    steps: tuple[TransitionStep, ...]
    removed: tuple[StateInstance, ...] = ()


@dataclass(frozen=True, slots=True)
class InstanceChanges:
    """What changes on a GPU: instances that go, those that come, and tenants that stop and start on those kept."""

    removed: tuple[StateInstance, ...]
    created: tuple[PlannedSlice, ...]
    retained: tuple[tuple[PlannedSlice, tuple[AnyTenant, ...], tuple[Tenant, ...]], ...]


def gpu_change(match: Match) -> InstanceChanges:
    """The change of a match. Created and retained slices stand at their starts on the host."""
    kind = gpu_type(match.host.type)
    slices: list[PlannedSlice] = []
    if match.target is not None and match.pair is not None:
        slices = [
            replace(item, start=start)
            for item, start in zip(match.target.slices, match.pair.starts, strict=True)
        ]
    present = {(item.profile, item.start): item for item in match.host.instances if item.foreign is None}
    kept_places = {(item.profile, item.start) for item in slices} & present.keys()
    slots = [_slots(kind, item) for item in slices]
    removed = tuple(
        item
        for item in match.host.instances
        if (item.foreign is None and (item.profile, item.start) not in kept_places)
        or (item.foreign is not None and any(_slots(kind, item) & taken for taken in slots))
    )
    retained = []
    for item in slices:
        if (item.profile, item.start) in kept_places:
            now = present[item.profile, item.start].planned_tenants
            stopped, started = _without(now, item.tenants), _without(item.tenants, now)
            if stopped or started:
                retained.append((item, stopped, started))
    created = tuple(item for item in slices if (item.profile, item.start) not in kept_places)
    return InstanceChanges(removed, created, tuple(retained))


def parts_of(match: Match, times: ChangeTimes) -> tuple[ChangePart, ...]:
    """The parts of one GPU's change; none where nothing changes."""
    host, kind, change = match.host, gpu_type(match.host.type), gpu_change(match)
    make = _StepMaker(host.id, times)
    parts = [
        ChangePart(host.id, host.type, make.tenants(item, stopped, started))
        for item, stopped, started in change.retained
    ]
    mode = _mode_action(match, kind)
    if mode is not None or not _fit_side_by_side(kind, match, change):
        groups = [(change.removed, change.created)] if change.removed or change.created or mode else []
    else:
        groups = _groups(kind, change)
    for removed, created in groups:
        order = sorted(created, key=lambda item: (-kind.profile(item.profile).memory_slices, item.start))
        steps = [step for item in removed for step in make.removal(item)]
        if mode is not None:
            steps.append(TransitionStep(host.id, mode, WHOLE_GPU, None, (), times.seconds(mode)))
        steps += [step for item in order for step in make.creation(item)]
        parts.append(ChangePart(host.id, host.type, tuple(steps), tuple(removed)))
    return tuple(parts)


def bridged(part: ChangePart, spare: str, times: ChangeTimes) -> ChangePart:
    """The part with its instances' tenants running on the spare GPU, at the same starts, from before it until after."""
    make = _StepMaker(spare, times)
    copies = [
        PlannedSlice(item.profile, item.start, item.planned_tenants)
        for item in part.removed
        if item.planned_tenants
    ]
    up = [step for item in copies for step in make.creation(item)]
    down = [
        step
        for item in copies
        for step in make.removal(StateInstance(item.profile, item.start, None, item.tenants))
    ]
    return replace(part, steps=(*up, *part.steps, *down))


class _StepMaker:
    def __init__(self, gpu: str, times: ChangeTimes) -> None:
        self.gpu, self.times = gpu, times

    def removal(self, item: StateInstance) -> list[TransitionStep]:
        tenants = (ForeignTenant("unknown tenants"),) if item.tenants is None else item.tenants
        stop = [self._step("stop", item, tenants)] if tenants else []
        return [*stop, self._step("destroy", item)]

    def creation(self, item: PlannedSlice) -> list[TransitionStep]:
        start = [self._step("start", item, item.tenants)] if item.tenants else []
        return [self._step("create", item), *start]

    def tenants(
        self, item: PlannedSlice, stopped: Sequence[AnyTenant], started: Sequence[Tenant]
    ) -> tuple[TransitionStep, ...]:
        stop = [self._step("stop", item, stopped)] if stopped else []
        return (*stop, *([self._step("start", item, started)] if started else []))

    def _step(
        self, action: StepAction, item: PlannedSlice | StateInstance, tenants: Sequence[AnyTenant] = ()
    ) -> TransitionStep:
        models = tuple(tenant.model for tenant in tenants if isinstance(tenant, Tenant))
        seconds = self.times.seconds(action, models)
        return TransitionStep(self.gpu, action, item.profile, item.start, tuple(tenants), seconds)


def _mode_action(match: Match, kind: GpuType) -> StepAction | None:
    if match.target is None or not has_mig(kind):
        return None
    is_on, is_whole = is_mig_on(match.host), match.target.slices[0].profile == WHOLE_GPU
    if is_whole:
        return "disable_mig" if is_on else None
    return "enable_mig" if is_on is False else None


def _without(tenants: Sequence[Tenant], others: Sequence[Tenant]) -> tuple[Tenant, ...]:
    """Those of `tenants` that `others` lack, counted."""
    left: Counter[Hashable] = Counter(map(member_key, others))
    missing = []
    for tenant in tenants:
        if left[member_key(tenant)]:
            left[member_key(tenant)] -= 1
        else:
            missing.append(tenant)
    return tuple(missing)


def _slots(kind: GpuType, item: PlannedSlice | StateInstance) -> set[int]:
    return set(range(item.start, item.start + kind.profile(item.profile).memory_slices))


def _fit_side_by_side(kind: GpuType, match: Match, change: InstanceChanges) -> bool:
    """Whether compute slices and numbers of instances suffice for all that stands before and after at once."""
    profiles = [*(item.profile for item in match.host.instances), *(item.profile for item in change.created)]
    compute = sum(kind.profile(profile).compute_slices for profile in profiles)
    counts = Counter(profiles)
    return compute <= kind.compute_slices and all(
        count <= kind.profile(profile).max_instances for profile, count in counts.items()
    )


def _groups(
    kind: GpuType, change: InstanceChanges
) -> list[tuple[tuple[StateInstance, ...], tuple[PlannedSlice, ...]]]:
    """What goes and comes, by what shares memory slots."""
    groups: list[tuple[set[int], list[StateInstance], list[PlannedSlice]]] = []
    items: Iterable[StateInstance | PlannedSlice] = (*change.removed, *change.created)
    for item in items:
        slots = _slots(kind, item)
        goes = [item] if isinstance(item, StateInstance) else []
        comes = [item] if isinstance(item, PlannedSlice) else []
        joined = (slots, goes, comes)
        for group in [group for group in groups if group[0] & slots]:
            groups.remove(group)
            joined = (joined[0] | group[0], [*group[1], *joined[1]], [*group[2], *joined[2]])
        groups.append(joined)
    return [(tuple(goes), tuple(comes)) for _, goes, comes in groups]
