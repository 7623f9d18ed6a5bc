"""The host and device of each planned GPU, and whether its slices can exist there.

`hardware/gpu_ids.py` has the rule for ids, which is the same for every format.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchsplit_core.hardware import creation_order, gpu_type, profile_cores
from torchsplit_core.hardware.gpu_ids import device_indices, host_of
from torchsplit_core.hardware.host_state.validity import check_planned
from torchsplit_core.values import (
    WHOLE_GPU,
    InputFault,
    Layout,
    PlacedProfile,
    PlannedGpu,
    PlannedSlice,
    PlanOutcome,
    point_type,
    quoted,
)


@dataclass(frozen=True, slots=True)
class HostGpu:
    """A GPU that the plan uses. `slices` are in the order of creation: large ones first.

    The cores of a host are among its GPUs; their index has no meaning.
    """

    index: int
    id: str
    type: str
    slices: tuple[PlannedSlice, ...]

    @property
    def is_unpartitioned(self) -> bool:
        """Whether it is left whole."""
        return self.slices[0].profile == WHOLE_GPU

    @property
    def is_cpu(self) -> bool:
        """Whether it is the cores of its host."""
        return point_type(self.type) != self.type


@dataclass(frozen=True, slots=True)
class Host:
    """A machine with GPUs of the plan, by device index. `name` None: the ids name no host."""

    name: str | None
    gpus: tuple[HostGpu, ...]

    @property
    def display_name(self) -> str:
        """Its name for a person."""
        return "this host" if self.name is None else self.name


def group_by_host(plan: PlanOutcome) -> tuple[Host, ...]:
    """The hosts with at least one cut GPU, in the order of the plan.

    Raises InputFault if the outcome has no plan, no GPU has a slice, or an id is empty before its slash, and as
    `check_planned` does: mig-parted accepts layouts that no GPU can have.
    """
    if plan.status not in ("optimal", "feasible"):
        raise InputFault(
            "plan",
            f"has the status {quoted(plan.status)}, so there is nothing to deploy",
            "Read the outcome's conflicts or give the solver more time, then plan again.",
        )
    by_host: dict[str | None, list[PlannedGpu]] = {}
    check_planned(plan.gpus)
    for gpu in plan.gpus:
        by_host.setdefault(_host_name(gpu.id), []).append(gpu)
    hosts = []
    for name, gpus in by_host.items():
        indices = device_indices([gpu.id for gpu in gpus if point_type(gpu.type) == gpu.type])
        used = [
            HostGpu(indices.get(gpu.id, 0), gpu.id, gpu.type, _slices_in_creation_order(gpu))
            for gpu in gpus
            if gpu.slices
        ]
        if used:
            hosts.append(Host(name, tuple(sorted(used, key=lambda gpu: gpu.index))))
    if not hosts:
        raise InputFault(
            "plan gpus", f"no GPU of {len(plan.gpus)} has a slice", "Plan with a demand above 0 first."
        )
    return tuple(hosts)


def _host_name(gpu_id: str) -> str | None:
    name = host_of(gpu_id)
    if name is not None and not (name.strip() and gpu_id.rpartition("/")[2].strip()):
        raise InputFault(
            "plan gpus id",
            f"{quoted(gpu_id)} lacks the host before its slash or the GPU after it",
            "Write HOST/GPU.",
        )
    return name


def gpu_hosts(hosts: tuple[Host, ...], format_name: str) -> tuple[Host, ...]:
    """The hosts with their GPUs only: MIG does not concern cores. Raises InputFault without any GPU."""
    with_gpus = tuple(
        Host(host.name, gpus) for host in hosts if (gpus := tuple(gpu for gpu in host.gpus if not gpu.is_cpu))
    )
    if not with_gpus:
        raise InputFault(
            "", f"{format_name} divides GPUs, and the plan uses only cores", "Choose another --format."
        )
    return with_gpus


def core_range(host: Host, gpu: HostGpu, item: PlannedSlice) -> str | None:
    """A slice's cores of the host in the syntax of systemd and Docker, None on a GPU.

    A host's cores may be several entries of a plan, which are consecutive.
    """
    count = profile_cores(item.profile)
    earlier = host.gpus[: host.gpus.index(gpu)]
    first = item.start + sum(gpu_type(entry.type).compute_slices for entry in earlier if entry.is_cpu)
    return None if count is None else f"{first}-{first + count - 1}"


def _slices_in_creation_order(gpu: PlannedGpu) -> tuple[PlannedSlice, ...]:
    kind = gpu_type(gpu.type)
    placed = tuple(PlacedProfile(item.profile, item.start) for item in gpu.slices)
    by_start = {item.start: item for item in gpu.slices}
    return tuple(by_start[item.start] for item in creation_order(kind, Layout(kind.name, placed)))
