"""What of a request's current state a plan stops, by the names and starts of its GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from torchsplit_core.hardware.host_state.validity import tenant_key
from torchsplit_core.planning.problem.held_gpus import touched_gpus
from torchsplit_core.values import HostState, PlannedGpu, PlanRequest

Place = tuple[str, str, int, Hashable]
"""A GPU, a profile, its start, and what runs there."""


@dataclass(frozen=True, slots=True)
class StoppedTenants:
    """`by_model`: of each model that runs now, its tenants that stop and all of them; most stopped first.

    `touched`: GPUs with other instances or tenants than now, of `gpus`.
    """

    by_model: tuple[tuple[str, int, int], ...]
    touched: int
    gpus: int

    @property
    def words(self) -> str:
        """For example "1 of 2 GPUs changes. Stops: bert (1 of 3), ocr (all 2). 4 of 7 tenants run on."."""
        changes = f"{self.touched} of {self.gpus} GPUs {'changes' if self.touched == 1 else 'change'}."
        total = sum(every for _, _, every in self.by_model)
        stopped = sum(count for _, count, _ in self.by_model)
        if not total:
            return f"{changes} Nothing of the scenario runs now."
        if not stopped:
            return f"{changes} Nothing stops: all {total} tenants run on."
        named = ", ".join(
            f"{model} ({count} of {all_of_it})" if count < all_of_it else f"{model} (all {count})"
            for model, count, all_of_it in self.by_model
            if count
        )
        return f"{changes} Stops: {named}. {total - stopped} of {total} tenants run on."


def stopped_tenants(request: PlanRequest, gpus: Sequence[PlannedGpu]) -> StoppedTenants | None:
    """What stops of the request's current state where these GPUs are planned; None without a current state."""
    if request.current is None:
        return None
    running = _running(request.current)
    planned = Counter(
        (gpu.id, item.profile, item.start, tenant_key(tenant))
        for gpu in gpus
        for item in gpu.slices
        for tenant in item.tenants
    )
    model_of = {
        tenant_key(tenant): tenant.model
        for gpu in request.current.gpus
        for item in gpu.instances
        for tenant in item.planned_tenants
    }
    before: Counter[str] = Counter()
    stopped: Counter[str] = Counter()
    for place, count in running.items():
        before[model_of[place[3]]] += count
        stopped[model_of[place[3]]] += max(0, count - planned[place])
    rows = sorted(((name, stopped[name], before[name]) for name in before), key=lambda row: (-row[1], row[0]))
    return StoppedTenants(tuple(rows), touched_gpus(request, gpus), len(gpus))


def _running(state: HostState) -> Counter[Place]:
    return Counter(
        (gpu.id, item.profile, item.start, tenant_key(tenant))
        for gpu in state.gpus
        for item in gpu.instances
        for tenant in item.planned_tenants
    )
