"""The one door: a plan and format names in, files out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torchsplit_core.deployment.files import DeploymentFile
from torchsplit_core.deployment.formats.compose import compose_files
from torchsplit_core.deployment.formats.kubernetes import kubernetes_files
from torchsplit_core.deployment.formats.mig_parted import mig_parted_files
from torchsplit_core.deployment.formats.nvidia_smi import nvidia_smi_files
from torchsplit_core.deployment.formats.ray_serve import ray_serve_files
from torchsplit_core.deployment.formats.slurm import slurm_files
from torchsplit_core.deployment.formats.systemd import systemd_files
from torchsplit_core.deployment.formats.triton import triton_files
from torchsplit_core.deployment.hosts import Host, hosts_of
from torchsplit_core.deployment.image import image_files
from torchsplit_core.deployment.names import one_line
from torchsplit_core.deployment.servers import Manifests, Workload, used_variants, workload_of
from torchsplit_core.deployment.summary import summary_file
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import (
    InputFault,
    PlanModel,
    PlanOutcome,
    PlanRequest,
    Variant,
    quoted,
    suggestion,
)

_LAYOUT: Mapping[str, Callable[[PlanOutcome, tuple[Host, ...]], tuple[DeploymentFile, ...]]] = {
    "mig-parted": mig_parted_files,
    "nvidia-smi": nvidia_smi_files,
}
_WORKLOAD: Mapping[str, Callable[[PlanOutcome, tuple[Host, ...], Workload], tuple[DeploymentFile, ...]]] = {
    "kubernetes": kubernetes_files,
    "ray-serve": ray_serve_files,
    "triton": triton_files,
    "compose": compose_files,
    "systemd": systemd_files,
    "slurm": slurm_files,
}

LAYOUT_FORMATS: tuple[str, ...] = tuple(_LAYOUT)
"""The formats that cut GPUs, of which a plan says everything."""
WORKLOAD_FORMATS: tuple[str, ...] = tuple(_WORKLOAD)
"""The formats that run models, so what those are must be known, and their parts be written."""
FORMATS: tuple[str, ...] = (*LAYOUT_FORMATS, *WORKLOAD_FORMATS)
"""The formats that `deploy` knows."""


def check_formats(formats: Sequence[str]) -> tuple[str, ...]:
    """The formats named, each once, in the order of FORMATS. Raises InputFault for no or an unknown one."""
    for name in formats:
        if name not in FORMATS:
            raise InputFault(
                "", f"unknown deployment format {quoted(name)}", suggestion(name, FORMATS, "formats")
            )
    if not formats:
        raise InputFault("deployment formats", "none is named", f"Name one of {', '.join(FORMATS)}.")
    return tuple(name for name in FORMATS if name in formats)


def models_to_write(
    plan: PlanOutcome, formats: Sequence[str], request: PlanRequest | None
) -> tuple[tuple[PlanModel, Variant], ...]:
    """The models whose parts these formats need, each with its variant; none where they only cut GPUs.

    Raises InputFault as `check_formats` does, for a plan that cannot be deployed, a request that is not the plan's
    or not there, and a model that has no source.
    """
    chosen = check_formats(formats)
    hosts_of(plan)
    workloads = [name for name in chosen if name in WORKLOAD_FORMATS]
    if not workloads:
        return ()
    if request is None:
        names = dict.fromkeys(t.model for gpu in plan.gpus for item in gpu.slices for t in item.tenants)
        raise InputFault(
            "deployment format",
            workloads[0],
            f"it runs the models, and a plan does not say what they are: {', '.join(map(one_line, names)) or 'none'}",
            "Add --request PLAN_REQUEST, whose models have a source; mig-parted and nvidia-smi need none.",
        )
    if request_hash(request) != plan.request_sha256:
        raise InputFault(
            "--request",
            f"is request {request_hash(request)[:12]}, but the plan answers {plan.request_sha256[:12]}",
            "Pass the plan's own request (torchsplit plan --save-request writes it), or plan this one.",
        )
    used = used_variants(plan, request)
    if not used:
        raise InputFault(
            "plan",
            f"serves no model, so {workloads[0]} has nothing to run",
            "Plan with a demand above 0 first.",
        )
    return used


def deploy(
    plan: PlanOutcome,
    formats: Sequence[str],
    request: PlanRequest | None = None,
    manifests: Manifests | None = None,
) -> tuple[DeploymentFile, ...]:
    """The files that make this plan real, README.md first; the same plan gives the same text.

    A format named twice is written once. `manifests` are of the parts of `models_to_write`, written under
    `image/models` in the folders of `part_folders`. Raises InputFault as `models_to_write` does, for slices that
    cannot exist together on their GPU, and for what a format cannot express.
    """
    chosen = check_formats(formats)
    hosts = hosts_of(plan)
    workload = None
    if models_to_write(plan, chosen, request):
        assert request is not None
        workload = workload_of(plan, request, hosts, manifests or {})
    files: list[DeploymentFile] = []
    for name in chosen:
        if name in _LAYOUT:
            files += _LAYOUT[name](plan, hosts)
        elif workload is not None:
            files += _WORKLOAD[name](plan, hosts, workload)
    if workload is not None:
        files += image_files(workload)
    return (summary_file(plan, hosts, chosen, tuple(files), workload), *files)
