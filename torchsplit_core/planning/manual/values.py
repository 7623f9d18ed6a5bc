"""The values of manual plans."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torchsplit_core.planning.outcome.tenants import tenant_of
from torchsplit_core.planning.problem.effective_rate import planned_rps
from torchsplit_core.planning.request.fleet import FleetGpu
from torchsplit_core.values import (
    PlanFault,
    PlanRequest,
    Point,
    Stage,
    Tenant,
    Variant,
    slice_name,
)


@dataclass(frozen=True, slots=True)
class ManualTenant:
    """A model on a slice; None: to be chosen. `group`: of an engine on several GPUs, which all have this tenant."""

    model: str
    variant: str | None = None
    stage: str | None = None
    batch_size: int | None = None
    processes: int | None = None
    share: float | None = None
    tensor_parallel: int = 1
    group: str | None = None


@dataclass(frozen=True, slots=True)
class ManualSlice:
    """A slice by its first memory slot, with its tenants."""

    profile: str
    start: int
    tenants: tuple[ManualTenant, ...] = ()


@dataclass(frozen=True, slots=True)
class ManualGpu:
    """A GPU of the fleet by its id, as the person sets it."""

    id: str
    slices: tuple[ManualSlice, ...] = ()


@dataclass
class ManualInstance:
    """A tenant during completion: what was requested, and what has been chosen so far."""

    gpu: FleetGpu
    profile: str
    start: int
    manual_tenant: ManualTenant
    share: float
    variant: Variant | None = None
    stage: Stage | None = None
    point: Point | None = None

    def fault(self, problem: str, remedy: str) -> PlanFault:
        """A fault of this tenant."""
        return PlanFault(
            self.gpu.id, slice_name(self.profile, self.start), self.manual_tenant.model, problem, remedy
        )

    def tenant(self, request: PlanRequest) -> Tenant:
        """The tenant as in a plan; without a point, only its model and share."""
        if self.variant is None or self.stage is None or self.point is None:
            return Tenant(self.manual_tenant.model, "", "", self.share, 0, 0, 0.0, None)
        tenant = tenant_of(
            self.manual_tenant.model, self.variant.name, self.stage.name, self.point,
            self.share, planned_rps(request, self.point),
        )  # fmt: skip
        if tenant.engine is None or self.manual_tenant.group is None:
            return tenant
        return replace(tenant, engine=replace(tenant.engine, group=self.manual_tenant.group))
