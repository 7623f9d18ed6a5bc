"""GPUs filled slice by slice within legal layouts, on which the baselines place models.

A GPU's state is the sorted tuple of its profiles; it may take another profile if the result is part of an allowed
layout. Equal GPUs in equal states are queued together, so finding the first GPU with room does not scan all GPUs.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from torchsplit_core.planning.outcome.assignment import AssignedSlice, Assignment
from torchsplit_core.planning.problem.build import Choice
from torchsplit_core.planning.problem.effective_rate import EffectivePoint
from torchsplit_core.values import Point

Layouts = tuple[tuple[str, ...], ...]
GpuState = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LayoutGroup:
    """Equal GPUs. `layouts`: the allowed ones, as sorted names. `full`: a GPU in use has one of them whole, idle
    slices included."""

    type: str
    gpu_ids: tuple[str, ...]
    layouts: Layouts
    cost: float
    full: bool


@dataclass(frozen=True, slots=True)
class PlacedInstance:
    """An instance of a stage by one of its points (indices of the request)."""

    model: int
    variant: int
    stage: int
    point: Point


class PartialLayouts:
    """The GPUs of all groups, numbered consecutively; first fit is the lowest number."""

    def __init__(self, groups: Sequence[LayoutGroup]) -> None:
        self.groups = tuple(groups)
        self.extensions = [layout_extensions(group.layouts) for group in groups]
        self.group_of = [g for g, group in enumerate(groups) for _ in group.gpu_ids]
        self.names = [name for group in groups for name in group.gpu_ids]
        self.states: list[GpuState] = [() for _ in self.names]
        self.instances: list[list[tuple[str, PlacedInstance]]] = [[] for _ in self.names]
        self._queues: list[dict[GpuState, list[int]]] = [{} for _ in groups]
        for gpu, g in enumerate(self.group_of):
            self._queues[g].setdefault((), []).append(gpu)

    def first_with_room(self, group: int, profile: str) -> int | None:
        """The first GPU of the group with room for one more slice of this profile."""
        extension = self.extensions[group]
        gpus = [
            gpu for state, gpu in self.first_by_state(group) if extension.extend(state, profile) is not None
        ]
        return min(gpus, default=None)

    def first_by_state(self, group: int) -> Iterator[tuple[GpuState, int]]:
        """Every state in the group, with the first GPU in it."""
        queues = self._queues[group]
        for state in list(queues):
            queue = queues[state]
            # A GPU whose state changed is still in the queue of its earlier state.
            while queue and self.states[queue[0]] != state:
                heapq.heappop(queue)
            if queue:
                yield state, queue[0]
            else:
                del queues[state]

    def place(self, gpu: int, profile: str, instance: PlacedInstance) -> None:
        """Add a slice to a GPU that has room for it."""
        state = self.extensions[self.group_of[gpu]].extend(self.states[gpu], profile)
        assert state is not None
        self.instances[gpu].append((profile, instance))
        self._set_state(gpu, state)

    def undo(self, gpu: int) -> None:
        """Undo the last `place` on this GPU."""
        profile, _ = self.instances[gpu].pop()
        left = list(self.states[gpu])
        left.remove(profile)
        self._set_state(gpu, tuple(left))

    def _set_state(self, gpu: int, state: GpuState) -> None:
        self.states[gpu] = state
        heapq.heappush(self._queues[self.group_of[gpu]].setdefault(state, []), gpu)

    def assignment(self) -> Assignment:
        """The filled slices as an assignment, without starts."""
        assignment = Assignment([], {}, {})
        for gpu, name in enumerate(self.names):
            if not self.instances[gpu]:
                continue
            g = self.group_of[gpu]
            assignment.layouts[name] = _final_layout(self.groups[g], self.states[gpu])
            for profile, instance in self.instances[gpu]:
                usable = EffectivePoint(instance.point, instance.point.throughput_rps)
                # The case of an instance is not needed once it has its slice.
                choice = Choice(0, instance.model, instance.variant, instance.stage, g, profile, usable, 0.0)
                assignment.slices.append(AssignedSlice(name, g, profile, [(choice, 1.0)]))
        return assignment


class LayoutExtensions:
    """Extensions of GPU states within these layouts, cached by state."""

    def __init__(self, layouts: Layouts) -> None:
        self._counts = [Counter(layout) for layout in layouts]
        self._extended: dict[tuple[GpuState, str], GpuState | None] = {}
        self._fitted: dict[tuple[GpuState, tuple[tuple[str, ...], ...]], tuple[str, ...] | None] = {}

    def extend(self, state: GpuState, profile: str) -> GpuState | None:
        """The state with another slice; None if no layout has room for it."""
        key = (state, profile)
        if key not in self._extended:
            larger = tuple(sorted((*state, profile)))
            count = Counter(larger)
            fits = any(count <= layout for layout in self._counts)
            self._extended[key] = larger if fits else None
        return self._extended[key]

    def fit_all(self, state: GpuState, needs: tuple[tuple[str, ...], ...]) -> tuple[str, ...] | None:
        """A profile for each need, chosen from its preferences so that all have room; None: none."""
        if not needs:
            return ()
        key = (state, needs)
        if key not in self._fitted:
            self._fitted[key] = self._search(state, needs)
        return self._fitted[key]

    def _search(self, state: GpuState, needs: tuple[tuple[str, ...], ...]) -> tuple[str, ...] | None:
        for profile in needs[0]:
            larger = self.extend(state, profile)
            rest = None if larger is None else self.fit_all(larger, needs[1:])
            if rest is not None:
                return (profile, *rest)
        return None


@lru_cache(maxsize=64)
def layout_extensions(layouts: Layouts) -> LayoutExtensions:
    """Shared by all groups with these layouts."""
    return LayoutExtensions(layouts)


def _final_layout(group: LayoutGroup, state: GpuState) -> tuple[str, ...]:
    if not group.full:
        return state
    covering = [layout for layout in group.layouts if Counter(state) <= Counter(layout)]
    return min(covering, key=lambda layout: (len(layout), layout))
