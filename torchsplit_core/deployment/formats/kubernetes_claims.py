"""The workload on Dynamic Resource Allocation (`resource.k8s.io/v1`): a ResourceClaim for each GPU.

The scheduler's allocator takes the first device that fits and reconsiders it only within one claim. So a claim has
every slice of a GPU as a request of its own, all on one parent GPU, and the pods share the claim, each naming its
request. Such claims land whatever their order, as `allocator` shows; a claim for each pod may strand.

The files are a component of the kustomization: it replaces the Deployments of the device plugin.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache, partial

from torchsplit_core.deployment.custom_images import ImageContainer
from torchsplit_core.deployment.files import DeploymentFile
from torchsplit_core.deployment.formats.kubernetes_pods import (
    ALLOCATED_BY,
    DRA,
    PLUGIN,
    PodPlacement,
    container_deployment,
    manifest_meta,
    resource_name,
    server_deployment,
)
from torchsplit_core.deployment.hosts import HostGpu
from torchsplit_core.deployment.safe_text import dns_labels
from torchsplit_core.deployment.workload import SliceServer, Workload
from torchsplit_core.deployment.yaml_text import document
from torchsplit_core.hardware import gpu_type
from torchsplit_core.values import WHOLE_GPU

DRIVER = "gpu.nvidia.com"
"""The name of NVIDIA's driver, the domain of its attributes, and its class of whole GPUs."""
MIG_CLASS = "mig.nvidia.com"
_POD_CLAIM = "gpu"
"""The claim's name inside a pod."""
_NAME, _CLAIM, _REQUEST, _NODE = (f"@torchsplit-{word}@" for word in ("name", "claim", "request", "node"))
"""What stands for names until they are filled in; YAML quotes a text that begins so."""

_COMPONENT = f"""\
# The slices by ResourceClaims instead of the device plugin. Not tested on hardware, not tried on a cluster.
# Needs Kubernetes 1.34, NVIDIA's DRA driver with GPU resources switched on, and no device plugin on these nodes.
# Add to ../kustomization.yaml, before other components:
#   components: [dra]
apiVersion: kustomize.config.k8s.io/v1alpha1
kind: Component
resources:
- claims.yaml
- deployments.yaml
patches:
- target:
    kind: Deployment
    labelSelector: {ALLOCATED_BY}={PLUGIN}
  patch: |-
    $patch: delete
    apiVersion: apps/v1
    kind: Deployment
    metadata: {{name: any}}
"""


def claim_files(workload: Workload) -> tuple[DeploymentFile, ...]:
    """The component and, with MIG slices, the classes for pods written for the device plugin; none without GPUs."""
    every: tuple[SliceServer | ImageContainer, ...] = (*workload.servers, *workload.containers)
    units = [
        unit
        for unit in every
        if not unit.gpu.is_cpu and (isinstance(unit, SliceServer) or unit.has_whole_slice)
    ]
    if not units:
        return ()
    used = {(unit.host.name, gpu.id): gpu for unit in units for gpu in _gpus(unit)}
    names = dns_labels({key: (key[0] or "", f"gpu{gpu.index}") for key, gpu in used.items()})
    claim_text = cache(partial(_claim_text, workload))
    deployments: dict[object, str] = {}
    for unit in units:
        kind = (unit.kind, unit.host.name is None)
        deployments[kind] = deployments.get(kind) or document(_deployment(workload, unit))
    texts = {
        "claims.yaml": (
            "a claim for each GPU, with every slice as a request",
            [_fill(claim_text(gpu.type, _profiles(gpu)), {_CLAIM: names[key]}) for key, gpu in used.items()],
        ),
        "deployments.yaml": (
            "a Deployment for each slice, whose pod names the slice's request",
            [
                _fill(
                    deployments[unit.kind, unit.host.name is None],
                    {
                        **{
                            _further(number): names[unit.host.name, gpu.id]
                            for number, gpu in enumerate(_gpus(unit)[1:], 1)
                        },
                        _NAME: unit.label,
                        _CLAIM: names[unit.host.name, unit.gpu.id],
                        _REQUEST: _request_names(_profiles(unit.gpu))[unit.gpu.slices.index(unit.slice)],
                        _NODE: unit.host.name or "",
                    },
                )
                for unit in units
            ],
        ),
    }
    profiles = dict.fromkeys(profile for gpu in used.values() for profile in _profiles(gpu) if profile)
    if profiles:
        texts["device-classes.yaml"] = (
            "the device plugin's resources by DRA, from Kubernetes 1.35 on; first fit",
            [document(_device_class(profile)) for profile in profiles],
        )
    head = f"# Plan {workload.plan}: {{what}}. Not tested on hardware, not tried on a cluster.\n"
    return (
        DeploymentFile("kubernetes/dra/kustomization.yaml", _COMPONENT),
        *(
            DeploymentFile(f"kubernetes/dra/{name}", head.format(what=what) + "---\n".join(manifests))
            for name, (what, manifests) in texts.items()
        ),
    )


def _request_names(profiles: Sequence[str]) -> tuple[str, ...]:
    """The name of each slice's request, numbered by profile: `1g-10gb-0`."""
    count: Counter[str] = Counter()
    names = []
    for profile in profiles:
        names.append(f"{_profile_label(profile)}-{count[profile]}")
        count[profile] += 1
    return tuple(names)


def _profiles(gpu: HostGpu) -> tuple[str, ...]:
    """Largest first."""
    return tuple(item.profile for item in gpu.slices)


def _fill(text: str, values: Mapping[str, str]) -> str:
    """A document with names in place of its tokens: to write each anew takes seconds on large fleets."""
    for token, value in values.items():
        text = text.replace(token, value)
    return text


def _claim_text(workload: Workload, type_name: str, profiles: tuple[str, ...]) -> str:
    """Every slice of a GPU; the free ones too, so that nothing else takes their place."""
    requests = []
    for profile, name in zip(profiles, _request_names(profiles), strict=True):
        expression = _product(type_name)
        if profile != WHOLE_GPU:
            expression = f"device.attributes['{DRIVER}'].profile == '{profile}' && {expression}"
        exactly = {
            "deviceClassName": DRIVER if profile == WHOLE_GPU else MIG_CLASS,
            "selectors": [{"cel": {"expression": expression}}],
        }
        requests.append({"name": name, "exactly": exactly})
    devices: dict[str, object] = {"requests": requests}
    if WHOLE_GPU not in profiles:  # a whole GPU has no parent
        devices["constraints"] = [{"requests": [], "matchAttribute": f"{DRIVER}/parentUUID"}]
    return document(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": manifest_meta(_CLAIM, "claim", workload),
            "spec": {"devices": devices},
        }
    )


def _product(type_name: str) -> str:
    """The CEL expression of a GPU type, since types share names of profiles: its product names, or their model word."""
    attribute = f"device.attributes['{DRIVER}'].productName"
    names = gpu_type(type_name).product_names
    if names:
        return f"{attribute} in {list(names)}"
    return f"{attribute}.matches(r'\\b{type_name.partition('-')[0]}\\b')"


def _deployment(workload: Workload, unit: SliceServer | ImageContainer) -> Mapping[str, object]:
    """The one pod of such a slice, on the plan's host where the plan names it; names are tokens."""
    node = {"key": "metadata.name", "operator": "In", "values": [_NODE]}
    further = range(1, len(_gpus(unit)))
    placement = PodPlacement(
        nodes=[{"matchFields": [node]}] if unit.host.name is not None else (),
        resources={
            "claims": [
                {"name": _POD_CLAIM, "request": _REQUEST},
                *({"name": f"{_POD_CLAIM}-{number}"} for number in further),
            ]
        },
        claims=[
            {"name": _POD_CLAIM, "resourceClaimName": _CLAIM},
            *({"name": f"{_POD_CLAIM}-{n}", "resourceClaimName": _further(n)} for n in further),
        ],
        allocated_by=DRA,
    )
    if isinstance(unit, SliceServer):
        return server_deployment(workload, unit.kind, _NAME, 1, placement)
    return container_deployment(workload, unit, _NAME, 1, placement)


def _gpus(unit: SliceServer | ImageContainer) -> tuple[HostGpu, ...]:
    """Its GPU, of an engine on several all of them."""
    return unit.gpus if isinstance(unit, ImageContainer) else (unit.gpu,)


def _further(number: int) -> str:
    """The token of the claim of a further GPU."""
    return f"{_CLAIM}-{number}-"


def _device_class(profile: str) -> Mapping[str, object]:
    attributes = f"device.attributes['{DRIVER}']"
    expression = (
        f"device.driver == '{DRIVER}' && {attributes}.type == 'mig' && {attributes}.profile == '{profile}'"
    )
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {
            "name": f"mig-{_profile_label(profile)}.torchsplit",
            "labels": {"app.kubernetes.io/part-of": "torchsplit"},
        },
        "spec": {
            "selectors": [{"cel": {"expression": expression}}],
            "extendedResourceName": resource_name(profile),
        },
    }


def _profile_label(profile: str) -> str:
    """A profile as a DNS label: `1g-10gb`, and `gpu` for a whole GPU."""
    return re.sub(r"[^a-z0-9]+", "-", profile.lower()) or "gpu"
