"""Deployment files from a plan and format names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torchsplit_core.deployment.addresses import check_addresses, check_nodes
from torchsplit_core.deployment.custom_images import CustomImage, custom_images
from torchsplit_core.deployment.files import DeploymentFile
from torchsplit_core.deployment.formats.compose import compose_files
from torchsplit_core.deployment.formats.kubernetes import kubernetes_files
from torchsplit_core.deployment.formats.mig_parted import mig_parted_files
from torchsplit_core.deployment.formats.nvidia_smi import nvidia_smi_files
from torchsplit_core.deployment.formats.ray_serve import ray_serve_files
from torchsplit_core.deployment.formats.slurm import slurm_files
from torchsplit_core.deployment.formats.systemd import systemd_files
from torchsplit_core.deployment.formats.triton import triton_files
from torchsplit_core.deployment.hosts import Host, group_by_host
from torchsplit_core.deployment.image import image_files
from torchsplit_core.deployment.readme import readme_file
from torchsplit_core.deployment.safe_text import one_line
from torchsplit_core.deployment.workload import Manifests, Workload, build_workload, used_variants
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import (
    InputFault,
    PlanModel,
    PlanOutcome,
    PlanRequest,
    Variant,
    point_type,
    quoted,
    slice_name,
    suggestion,
    tenants_on,
)

_LAYOUT_WRITERS: Mapping[str, Callable[[PlanOutcome, tuple[Host, ...]], tuple[DeploymentFile, ...]]] = {
    "mig-parted": mig_parted_files,
    "nvidia-smi": nvidia_smi_files,
}
_WORKLOAD_WRITERS: Mapping[
    str, Callable[[PlanOutcome, tuple[Host, ...], Workload], tuple[DeploymentFile, ...]]
] = {
    "kubernetes": kubernetes_files,
    "ray-serve": ray_serve_files,
    "triton": triton_files,
    "compose": compose_files,
    "systemd": systemd_files,
    "slurm": slurm_files,
}

LAYOUT_FORMATS: tuple[str, ...] = tuple(_LAYOUT_WRITERS)
"""The formats that cut GPUs, which only need the plan."""
WORKLOAD_FORMATS: tuple[str, ...] = tuple(_WORKLOAD_WRITERS)
"""The formats that run models, which need their sources and written parts."""
FILE_FORMATS = ("ray-serve", "triton")
"""The formats that run model files in a server of their own, and no custom image; Ray also engines of LLMs."""
WHOLE_SLICE_FORMATS = ("kubernetes", "slurm")
"""The formats whose scheduler assigns a slice to one container."""
FORMATS: tuple[str, ...] = (*LAYOUT_FORMATS, *WORKLOAD_FORMATS)
"""The formats that `deploy` knows."""


def check_formats(formats: Sequence[str]) -> tuple[str, ...]:
    """The formats named, each once, in the order of FORMATS. Raises InputFault for none or an unknown one."""
    for name in formats:
        if name not in FORMATS:
            raise InputFault(
                "", f"unknown deployment format {quoted(name)}", suggestion(name, FORMATS, "formats")
            )
    if not formats:
        raise InputFault("deployment formats", "none is named", f"Name one of {', '.join(FORMATS)}.")
    return tuple(name for name in FORMATS if name in formats)


def models_to_write(
    plan: PlanOutcome,
    formats: Sequence[str],
    request: PlanRequest | None,
    images: Mapping[str, CustomImage] | None = None,
) -> tuple[tuple[PlanModel, Variant], ...]:
    """The models whose parts these formats need, each with its variant; none for layout formats.

    `images`: the models with custom images (None: those without a source, as placeholders). Raises InputFault as
    `check_formats` does, for a plan that cannot be deployed, a missing request or one of another plan, and a format
    that runs nothing of the plan.
    """
    chosen = check_formats(formats)
    group_by_host(plan)
    workloads = [name for name in chosen if name in WORKLOAD_FORMATS]
    if not workloads:
        return ()
    served = dict.fromkeys(tenant.model for *_, tenant in tenants_on(plan.gpus))
    if request is None:
        raise InputFault(
            "",
            f"{workloads[0]} runs the models ({', '.join(map(one_line, served)) or 'none'}), "
            "and a plan alone does not say what they are",
            f"Add --request PLAN_REQUEST; {' and '.join(LAYOUT_FORMATS)} need none.",
        )
    if request_hash(request) != plan.request_sha256:
        raise InputFault(
            "--request",
            f"is request {request_hash(request)[:12]}, but the plan answers {plan.request_sha256[:12]}",
            "Pass the plan's own request (torchsplit plan --save-request writes it), or plan this one.",
        )
    if not served:
        raise InputFault(
            "plan",
            f"serves no model, so {workloads[0]} has nothing to run",
            "Plan with a demand above 0 first.",
        )
    on_cores = dict.fromkeys(
        tenant.model
        for gpu, _, tenant in tenants_on(plan.gpus)
        if tenant.engine is not None and point_type(gpu.type) != gpu.type
    )
    if on_cores:
        raise InputFault(
            "plan",
            f"has engines of LLMs on cores ({', '.join(map(one_line, on_cores))}), and vLLM's image is for GPUs",
            "Serve this plan on its host with torchsplit serve.",
        )
    images = custom_images(request) if images is None else images
    for name in workloads:
        if fault := _host_fault(plan, name):
            raise fault
        omitted, omits_all = omitted_by(plan, name, images)
        if omits_all:
            raise InputFault(
                name, f"leaves out all of this plan: {omitted}", "Choose compose or systemd, which do."
            )
    return used_variants(plan, request, images)


def deploy(
    plan: PlanOutcome,
    formats: Sequence[str],
    request: PlanRequest | None = None,
    manifests: Manifests | None = None,
    images: Mapping[str, CustomImage] | None = None,
    verdict: str = "",
) -> tuple[DeploymentFile, ...]:
    """The files that deploy this plan, README.md first; deterministic.

    Repeated formats are written once. `manifests`: of the parts of `models_to_write`, which are written under
    `image/models` in the folders of `part_folders`; `verdict`: the plan's verdict, for the README. Raises InputFault as
    `models_to_write` does, for slices that cannot exist together on their GPU, and for anything that a format cannot
    express.
    """
    chosen = check_formats(formats)
    hosts = group_by_host(plan)
    workload = None
    models_to_write(plan, chosen, request, images)
    if request is not None and any(name in WORKLOAD_FORMATS for name in chosen):
        images = custom_images(request) if images is None else images
        workload = build_workload(plan, request, hosts, manifests or {}, images)
    files: list[DeploymentFile] = []
    for name in chosen:
        if name in _LAYOUT_WRITERS:
            files += _LAYOUT_WRITERS[name](plan, hosts)
        elif workload is not None:
            files += _WORKLOAD_WRITERS[name](plan, hosts, workload)
    if workload is not None and workload.kinds:
        files += image_files(workload)
    omissions = {name: text for name in chosen if (text := omitted_by(plan, name, images)[0])}
    return (readme_file(plan, hosts, chosen, tuple(files), workload, omissions, verdict), *files)


def omitted_by(plan: PlanOutcome, name: str, images: Mapping[str, CustomImage] | None) -> tuple[str, bool]:
    """What a format leaves out of the plan, in words ("" for nothing), and whether that is all of it.

    `images` None: the plan's request is unknown.
    """
    if name in LAYOUT_FORMATS:
        if any(gpu.slices and point_type(gpu.type) == gpu.type for gpu in plan.gpus):
            return "", False
        return "everything, since this format divides GPUs and the plan uses only cores", True
    if images is None:
        return "everything, since only the plan's request says what the models are, and it is not there", True
    if fault := _host_fault(plan, name):
        return f"everything, since {fault.problem}", True
    served = list(tenants_on(plan.gpus))
    if name in FILE_FORMATS:
        omitted = [
            entry
            for entry in served
            if entry[2].model in images and (name == "triton" or not images[entry[2].model].is_vllm)
        ]
        names = ", ".join(dict.fromkeys(tenant.model for *_, tenant in omitted))
        engines = "" if name == "ray-serve" else ", an engine of an LLM too"
        text = f"what runs in an image of its own{engines}: this format runs model files ({names})"
    elif name in WHOLE_SLICE_FORMATS:
        omitted = [entry for entry in served if entry[2].model in images and len(entry[1].tenants) > 1]
        names = ", ".join(
            f"{tenant.model} on {gpu.id} {slice_name(item.profile, item.start)}"
            for gpu, item, tenant in omitted
        )
        text = f"what shares its slice, since this format gives a slice to one container ({names})"
    else:
        return "", False
    return (text if omitted else ""), bool(served) and len(omitted) == len(served)


def _host_fault(plan: PlanOutcome, name: str) -> InputFault | None:
    """Why a format that runs models cannot name the plan's hosts, or they not reach each other; None if they can."""
    hosts = group_by_host(plan)
    try:
        if name in WHOLE_SLICE_FORMATS:
            check_nodes(hosts, name)
        if name != "kubernetes":
            check_addresses(hosts, name)
    except InputFault as fault:
        return fault
    return None
