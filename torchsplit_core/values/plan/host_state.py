"""What stands on the GPUs of hosts now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torchsplit_core.values.fields import Added, FileField, Name, Required, Whole
from torchsplit_core.values.hardware import WHOLE_GPU
from torchsplit_core.values.plan.tenant import Tenant


@dataclass(frozen=True, slots=True)
class ForeignTenant:
    """A tenant that no plan of ours placed, by any name: a process, a pod, a person."""

    foreign: Name


@dataclass(frozen=True, slots=True)
class StateInstance:
    """A MIG instance at its first memory slot; `profile` WHOLE_GPU: the GPU that is left whole.

    `tenants` None: not known, as a listing in text gives it; empty: nothing runs there. `uuid` of the MIG device,
    None where it is not known.
    """

    profile: Annotated[Name, FileField(null=WHOLE_GPU)]
    start: Whole
    uuid: Added[Name | None] = None
    tenants: Required[tuple[Tenant | ForeignTenant, ...] | None] = None

    @property
    def foreign(self) -> str | None:
        """Who uses it besides plans: the names of foreign tenants; None if there is nobody of whom that is known or
        possible."""
        if self.tenants is None:
            return "unknown tenants"
        names = [item.foreign for item in self.tenants if isinstance(item, ForeignTenant)]
        return ", ".join(names) or None

    @property
    def planned_tenants(self) -> tuple[Tenant, ...]:
        """Its tenants that a plan placed."""
        return tuple(item for item in self.tenants or () if isinstance(item, Tenant))


@dataclass(frozen=True, slots=True)
class StateGpu:
    """A GPU of a host and its instances. `id` as in plans: HOST/GPU.

    `mig_enabled` None: not known, or a type without MIG.
    """

    id: Name
    type: Name
    uuid: Annotated[Name | None, FileField(added=True, after="id")] = None
    mig_enabled: Added[bool | None] = None
    instances: Required[tuple[StateInstance, ...]] = ()


@dataclass(frozen=True, slots=True)
class HostState:
    """All GPUs of one or more hosts. `captured_at`: UTC, ISO 8601; None where it was not read from a host."""

    gpus: tuple[StateGpu, ...]
    captured_at: Added[Name | None] = None
