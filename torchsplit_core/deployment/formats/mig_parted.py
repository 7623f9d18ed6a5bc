"""A plan as a configuration of nvidia-mig-parted (github.com/NVIDIA/mig-parted, spec v1).

A label has one node's configuration; equally cut hosts share one. The format has no field for starts: mig-parted
chooses placements, and only counts are guaranteed. Unused GPUs of the plan are not mentioned, so mig-parted leaves them
as they are. MIG is turned off on GPUs left whole; cores are ignored.
"""

from __future__ import annotations

from collections import Counter

import yaml

from torchsplit_core.deployment.files import DeploymentFile
from torchsplit_core.deployment.hosts import Host, gpu_hosts
from torchsplit_core.deployment.safe_text import one_line
from torchsplit_core.deployment.yaml_text import Dumper, document
from torchsplit_core.hardware import catalogue
from torchsplit_core.planning.confidence.formatting import format_models
from torchsplit_core.values import WHOLE_GPU, GpuType, PlanOutcome

_WHOLE = ((WHOLE_GPU, 1),)

_BALANCED = {7: {1: 2, 2: 1, 3: 1}, 4: {1: 2, 2: 1}}
"""Slices of all-balanced by compute slices of the GPU and of the slice, as mig-parted generates it."""

_Counts = tuple[tuple[str, int], ...]
"""Profiles with their counts."""
_GpuShape = tuple[int, str, _Counts]


def config_labels(hosts: tuple[Host, ...]) -> tuple[str, ...]:
    """The label of each host: `torchsplit` if all are alike, else `torchsplit-1`, `torchsplit-2`, …

    Hosts are alike if equal indices are GPUs of equal type with equal slices.
    """
    shapes = list(dict.fromkeys(_shape(host) for host in hosts))
    if len(shapes) == 1:
        return ("torchsplit",) * len(hosts)
    return tuple(f"torchsplit-{shapes.index(_shape(host)) + 1}" for host in hosts)


def mig_config(hosts: tuple[Host, ...]) -> dict[str, list[dict[str, object]]]:
    """The value of `mig-configs`: for each label its entries, equal GPUs of a host in one entry."""
    configs: dict[str, list[dict[str, object]]] = {}
    for label, host in zip(config_labels(hosts), hosts, strict=True):
        indices_by_slices: dict[_Counts, list[int]] = {}
        for index, _, counts in _shape(host):
            indices_by_slices.setdefault(counts, []).append(index)
        configs.setdefault(
            label,
            [
                {"devices": indices, "mig-enabled": False}
                if counts == _WHOLE
                else {"devices": indices, "mig-enabled": True, "mig-devices": dict(counts)}
                for counts, indices in indices_by_slices.items()
            ],
        )
    return configs


def standard_configs() -> dict[str, list[dict[str, object]]]:
    """The configurations that mig-parted generates from a node's GPUs, for every type whose PCI id is known.

    A file of one's own replaces them on all nodes, so a node with such a label would fail without them.
    """
    ids: dict[str, dict[_Counts, list[str]]] = {}
    for kind in catalogue().values():
        for label, counts in _standard_counts(kind):
            ids.setdefault(label, {}).setdefault(counts, []).extend(kind.pci_device_ids)
    configs: dict[str, list[dict[str, object]]] = {
        "all-disabled": [{"devices": "all", "mig-enabled": False}],
        "all-enabled": [{"devices": "all", "mig-enabled": True, "mig-devices": {}}],
    }
    for label, by_counts in ids.items():
        entries: list[dict[str, object]] = [
            {"devices": "all", "device-filter": known, "mig-enabled": True, "mig-devices": dict(counts)}
            for counts, known in by_counts.items()
            if known  # an empty filter matches every GPU
        ]
        if entries:
            configs[label] = entries
    return configs


def _standard_counts(kind: GpuType) -> list[tuple[str, _Counts]]:
    """Each label of a GPU type with profiles and their counts."""
    labels: list[tuple[str, _Counts]] = [
        (f"all-{profile.name.replace('+', '.')}", ((profile.name, profile.max_instances),))
        for profile in kind.profiles
    ]
    smallest = {  # of each size, the profile of which most fit
        profile.compute_slices: profile.name
        for profile in sorted(kind.profiles, key=lambda profile: profile.max_instances)
        if not {"+", "-"} & set(profile.name)
    }
    balanced = _BALANCED.get(kind.compute_slices, {})
    if balanced and balanced.keys() <= smallest.keys():
        counts = tuple((smallest[size], count) for size, count in balanced.items())
        labels.append(("all-balanced", counts))
    return labels


def mig_parted_files(plan: PlanOutcome, hosts: tuple[Host, ...]) -> tuple[DeploymentFile, ...]:
    """`mig-parted.yaml` with comments that say which host takes which label, and what each model gets.

    Raises InputFault if the plan uses no GPU.
    """
    hosts = gpu_hosts(hosts, "mig-parted")
    lines = [
        f"# MIG layout of plan {plan.request_sha256[:12]}, for nvidia-mig-parted. Not tested on hardware.",
        "# Applying removes all MIG instances of each GPU named here that has other profiles or counts of them.",
    ]
    for label, host in zip(config_labels(hosts), hosts, strict=True):
        lines.append(f"# {label}: {one_line(host.display_name)}")
        lines += [
            f"#   {gpu.index}: {gpu.type} {one_line(gpu.id)}, "
            + ("left whole" if gpu.is_unpartitioned else f"slices: {len(gpu.slices)}")
            for gpu in host.gpus
        ]
    lines += [f"# {one_line(model)}: throughput {words}" for model, words in format_models(plan).items()]
    text = dump({"version": "v1", "mig-configs": mig_config(hosts)})
    return (DeploymentFile("mig-parted.yaml", "\n".join(lines) + "\n" + text),)


class _FlowIndices(Dumper):
    """Writes device indices and PCI ids on one line."""


def _sequence(dumper: Dumper, data: list[object]) -> yaml.Node:
    flow = all(isinstance(item, int | str) for item in data)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=flow)


_FlowIndices.add_representer(list, _sequence)


def dump(value: object) -> str:
    """A YAML document in ASCII, keys in the given order."""
    return document(value, _FlowIndices)


def _shape(host: Host) -> tuple[_GpuShape, ...]:
    return tuple(
        (gpu.index, gpu.type, tuple(sorted(Counter(item.profile for item in gpu.slices).items())))
        for gpu in host.gpus
        if not gpu.is_cpu
    )
