"""The one door: a plan and format names in, files out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torchsplit_core.deployment.files import DeploymentFile
from torchsplit_core.deployment.formats.kubernetes import kubernetes_files
from torchsplit_core.deployment.formats.mig_parted import mig_parted_files
from torchsplit_core.deployment.formats.nvidia_smi import nvidia_smi_files
from torchsplit_core.deployment.hosts import Host, hosts_of
from torchsplit_core.deployment.summary import summary_file
from torchsplit_core.values import InputFault, PlanOutcome

_WRITERS: Mapping[str, Callable[[PlanOutcome, tuple[Host, ...]], tuple[DeploymentFile, ...]]] = {
    "mig-parted": mig_parted_files,
    "nvidia-smi": nvidia_smi_files,
    "kubernetes": kubernetes_files,
}

FORMATS: tuple[str, ...] = tuple(_WRITERS)
"""The formats that `deploy` knows."""


def deploy(plan: PlanOutcome, formats: Sequence[str]) -> tuple[DeploymentFile, ...]:
    """The files that make this plan real, README.md first; the same plan gives the same text.

    A format named twice is written once. Raises InputFault for no or an unknown format, a
    plan whose status is neither optimal nor feasible, one without a slice, and slices that
    cannot exist together on their GPU.
    """
    for name in formats:
        if name not in _WRITERS:
            raise InputFault(
                "deployment format", name, "it is a known format", f"Known are {', '.join(FORMATS)}."
            )
    if not formats:
        raise InputFault(
            "deployment formats", list(formats), "at least one is named", f"Known are {', '.join(FORMATS)}."
        )
    hosts = hosts_of(plan)
    chosen = tuple(name for name in FORMATS if name in formats)
    files = tuple(file for name in chosen for file in _WRITERS[name](plan, hosts))
    return (summary_file(plan, hosts, chosen, files), *files)
