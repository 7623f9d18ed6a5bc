"""Hosts that are replayed listings, their states, and transitions made by hand."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchsplit_core.apply import (
    ApplyJournal,
    ApplySettings,
    HostChange,
    apply_change,
    finish_change,
    read_journal,
    status_text,
    undo_change,
)
from torchsplit_core.hardware import Nvml, gpu_type
from torchsplit_core.hardware.replay import ReplayNvml
from torchsplit_core.values import (
    ForeignTenant,
    HostState,
    Layout,
    StateGpu,
    StateInstance,
    StepAction,
    Tenant,
    Transition,
    TransitionStep,
)

Placed = tuple[str, int]
PLAN = "ab" * 32
A30 = "A30-24GB"
BEFORE: tuple[Placed, ...] = (("1g.6gb", 0), ("1g.6gb", 1), ("2g.12gb", 2))
AFTER: tuple[Placed, ...] = (("2g.12gb", 0), ("2g.12gb", 2))
QUICK = ApplySettings(drain_s=0)


def tenant(model: str) -> Tenant:
    return Tenant(model, "whole", "whole", 1.0, 8, 1, 120.0, 3.2)


def placed(layout: Layout) -> tuple[Placed, ...]:
    return tuple((item.profile, item.start) for item in layout.placed)


def host(folder: Path, kind: str | Sequence[str], *layouts: Sequence[Placed], mig: str = "on") -> ReplayNvml:
    """A listing of one GPU a layout, all of a type or each of its own."""
    kinds = [kind] * len(layouts) if isinstance(kind, str) else kind
    gpus = [
        {
            "name": f"NVIDIA {kinds[number]}", "uuid": f"GPU-{number}", "memory_mib": 24576,
            "type": kinds[number], "mig": mig,
            "pci_device_id": gpu_type(kinds[number]).pci_device_ids[0], "lost": False, "state": {}, "processes": [],
            "instances": [
                {"id": index, "profile": profile, "start": start, "compute_instance": 0,
                 "uuid": f"MIG-{number}-{index}"}
                for index, (profile, start) in enumerate(layout, 1)
            ],
        }
        for number, layout in enumerate(layouts)
    ]  # fmt: skip
    path = folder / "listing.json"
    data = {
        "format": "torchsplit.nvml_replay", "version": 1, "source": "a test", "permission": True, "gpus": gpus,
    }  # fmt: skip
    path.write_text(json.dumps(data))
    return ReplayNvml(path)


def alter(nvml: ReplayNvml, **fields: Any) -> None:
    """Change fields of the first GPU of a listing."""
    data = json.loads(nvml.path.read_text())
    data["gpus"][0] |= fields
    nvml.path.write_text(json.dumps(data))


def stands(nvml: ReplayNvml, index: int = 0) -> set[Placed]:
    """The instances of a GPU, each with its compute instance."""
    instances = nvml.gpu_instances(index)
    assert all(len(item.compute_instances) == 1 for item in instances)
    return {(item.profile, item.start) for item in instances}


def state(
    nvml: ReplayNvml, tenants: Mapping[Placed, Sequence[Tenant | ForeignTenant]] | None = None
) -> HostState:
    """The listing as the state of the host `node0`; the tenants are the first GPU's."""
    gpus = []
    for index in range(nvml.gpu_count()):
        gpu = nvml.gpu(index)
        uuids = {item.gpu_instance_id: item.uuid for item in nvml.mig_devices(index)}
        instances = tuple(
            StateInstance(
                item.profile, item.start, uuids[item.id],
                tuple((tenants or {}).get((item.profile, item.start), ())) if index == 0 else (),
            )
            for item in nvml.gpu_instances(index)
        )  # fmt: skip
        kind = json.loads(nvml.path.read_text())["gpus"][index]["type"]
        gpus.append(StateGpu(f"node0/gpu{index}", kind, gpu.uuid, gpu.mig_current, instances))
    return HostState(tuple(gpus))


def step(
    action: StepAction, place: Placed | None = None, *tenants: Tenant | ForeignTenant, gpu: int = 0
) -> TransitionStep:
    profile, start = place or ("", None)
    return TransitionStep(f"node0/gpu{gpu}", action, profile, start, tenants, 0.5)


def transition(*steps: TransitionStep) -> Transition:
    return Transition("optimal", 0, 0, 1, None, steps=steps)


def straight(
    kind: str, before: Sequence[Placed], after: Sequence[Placed], gpu: int = 0
) -> list[TransitionStep]:
    """What goes first, then what comes, large first: legal between any two legal layouts."""
    sizes = {profile.name: profile.memory_slices for profile in gpu_type(kind).profiles}
    gone = [step("destroy", place, gpu=gpu) for place in before if place not in after]
    new = sorted((place for place in after if place not in before), key=lambda place: -sizes[place[0]])
    return [*gone, *(step("create", place, gpu=gpu) for place in new)]


class Host:
    """A replayed host `node0` with its journal; what it says stays in `said`."""

    def __init__(self, folder: Path, *layouts: Sequence[Placed], kind: str = A30, mig: str = "on") -> None:
        self.nvml = host(folder, kind, *layouts, mig=mig)
        self.path = folder / "journals" / "node0.journal.json"
        self.said: list[str] = []

    def change(
        self,
        *steps: TransitionStep,
        plan: str = PLAN,
        tenants: Mapping[Placed, Sequence[Tenant | ForeignTenant]] | None = None,
        whole: Sequence[Tenant] | None = None,
    ) -> HostChange:
        """The steps from the listing's state; `whole`: the first GPU is left whole, with these tenants."""
        now = state(self.nvml, tenants)
        if whole is not None:
            first = replace(now.gpus[0], instances=(StateInstance("", 0, None, tuple(whole)),))
            now = replace(now, gpus=(first, *now.gpus[1:]))
        return HostChange.of(transition(*steps), now, "node0", plan)

    def unfiltered(self, change: HostChange, steps: Sequence[TransitionStep]) -> HostChange:
        """The change with other steps, also of GPUs that it has not got."""
        return replace(change, transition=transition(*steps))

    def apply(
        self, change: HostChange, settings: ApplySettings = QUICK, nvml: Nvml | None = None
    ) -> ApplyJournal | None:
        """As the command does it."""
        arguments = (self.path, settings, self.said.append)
        driver = nvml or self.nvml
        finished = finish_change(driver, change.host, change.plan_sha256, *arguments)
        return finished or apply_change(driver, change, *arguments)

    def undo(self, settings: ApplySettings = QUICK, nvml: Nvml | None = None) -> ApplyJournal | None:
        """As the command does it."""
        return undo_change(nvml or self.nvml, "node0", self.path, settings, self.said.append)

    @property
    def journal(self) -> ApplyJournal:
        """The journal as it is on disk."""
        journal = read_journal(self.path)
        assert journal is not None
        return journal

    def status(self) -> str:
        """What --status says."""
        return status_text(self.journal, self.path)
