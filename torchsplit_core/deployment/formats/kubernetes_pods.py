"""The pods of a plan's slices on Kubernetes: their Deployments, probes and annotations.

How a pod gets its slice is a `PodPlacement`: from the device plugin by the slice's profile, or by a ResourceClaim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchsplit_core.deployment.custom_images import ImageContainer
from torchsplit_core.deployment.image import image_name
from torchsplit_core.deployment.safe_text import one_line
from torchsplit_core.deployment.vllm import HEALTH_PATH, STARTED_PATH, STARTUP_S, TOKEN
from torchsplit_core.deployment.workload import ROUTER_PORT, ServerKind, Workload
from torchsplit_core.hardware import profile_cores
from torchsplit_core.planning.confidence.formatting import format_tenant
from torchsplit_core.values import Tenant

SERVES = "serves.torchsplit"
"""Prefix of the label of each part that a pod serves: a shared slice serves several."""
ALLOCATED_BY = "torchsplit/allocated-by"
"""The label of Deployments on GPUs that says who assigns the slice: the component dra replaces those of the plugin."""
PLUGIN = "device-plugin"
DRA = "resource-claims"

PRE_STOP_S = 5
"""From the removal of the pod from its Services to SIGTERM: requests on their way still arrive."""
GRACE_S = 60
"""From there to SIGKILL: the server drains for up to 30 s."""

PROMETHEUS_ANNOTATIONS = {
    "prometheus.io/scrape": "true",
    "prometheus.io/port": str(ROUTER_PORT),
    "prometheus.io/path": "/metrics",
}
TOKEN_SECRET = "torchsplit-hugging-face"
"""A Secret of the reader's, with the key `token`, for models that Hugging Face gives to some only."""


@dataclass(frozen=True, slots=True)
class PodPlacement:
    """Where pods may run and how they get their device.

    `nodes`: nodeSelectorTerms, empty for any node; `resources`: the container's; `claims`: the pod's resourceClaims;
    `allocated_by`: the value of that label, empty for pods on cores.
    """

    nodes: Sequence[Mapping[str, object]]
    resources: Mapping[str, object]
    claims: Sequence[Mapping[str, object]] = ()
    allocated_by: str = ""


def resource_name(profile: str) -> str:
    """The device plugin's resource for a profile; its plus, which is not allowed, becomes a dot."""
    return f"nvidia.com/mig-{profile.replace('+', '.')}" if profile else "nvidia.com/gpu"


def manifest_meta(
    name: str, component: str, workload: Workload, more: Mapping[str, str] | None = None
) -> dict[str, object]:
    """Metadata with the plan's labels, and those of `more` that have a value."""
    labels = {
        "app.kubernetes.io/name": name,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/part-of": "torchsplit",
        **{key: value for key, value in (more or {}).items() if value},
    }
    return {"name": name, "labels": labels, "annotations": {"torchsplit/plan": workload.plan}}


def plugin_resources(profile: str, tenants: Sequence[Tenant]) -> dict[str, object]:
    """One slice, whole GPU or group of these of the device plugin, or whole cores.

    A pod has cores exclusively if its requests equal its limits, also of memory, and the kubelet's CPU manager is
    static.
    """
    cores = profile_cores(profile)
    if cores is None:
        return {"limits": {resource_name(profile): max(tenant.gpus for tenant in tenants)}}
    known = [tenant.memory_gib for tenant in tenants]
    amounts: dict[str, object] = {"cpu": cores}
    if all(known):
        amounts["memory"] = f"{round(sum(memory_gib or 0.0 for memory_gib in known)) + 2}Gi"
    return {"requests": amounts, "limits": amounts}


def server_deployment(
    workload: Workload, kind: ServerKind, name: str, replicas: int, placement: PodPlacement
) -> Mapping[str, object]:
    """Servers of a kind."""
    mounts: list[Mapping[str, object]] = [
        {"name": "plan", "mountPath": f"/srv/servers/{kind.label}", "readOnly": True},
        {"name": "shared-memory", "mountPath": "/dev/shm"},
    ]
    environment = {"TORCHSPLIT_SERVER": kind.label, "TORCHSPLIT_PORT": str(ROUTER_PORT)}
    if kind.needs_mps:
        environment["TORCHSPLIT_MPS"] = "1"
    pod = image_pod(workload, environment, placement.resources, mounts)
    pod["volumes"] = [{"name": "plan", "configMap": {"name": kind.label}}, _shared_memory(1)]
    annotations = _annotations(workload, kind.gpu_type, kind.tenants)
    return _slice_deployment(
        workload,
        name,
        "server",
        [instance.part.label for instance in kind.instances],
        replicas,
        pod,
        placement,
        annotations,
        PROMETHEUS_ANNOTATIONS,
    )


def container_deployment(
    workload: Workload, first: ImageContainer, name: str, replicas: int, placement: PodPlacement
) -> Mapping[str, object]:
    """Containers like `first` of a custom image: ready when the port answers; only its author knows its privileges."""

    def probe(path: str, period_s: int, failures: int) -> dict[str, object]:
        look = (
            {"httpGet": {"path": path, "port": "http"}} if first.is_vllm else {"tcpSocket": {"port": "http"}}
        )
        return {**look, "periodSeconds": period_s, "timeoutSeconds": 5, "failureThreshold": failures}

    environment: list[Mapping[str, object]] = [
        {"name": key, "value": value.replace("$(", "$$(")}
        for key, value in first.environment(ROUTER_PORT).items()
    ]
    mounts: list[Mapping[str, object]] = [{"name": "shared-memory", "mountPath": "/dev/shm"}]
    volumes: list[Mapping[str, object]] = [_shared_memory(first.shared_memory_gib)]
    if first.is_vllm:
        secret = {"name": TOKEN_SECRET, "key": "token", "optional": True}
        environment.append({"name": TOKEN, "valueFrom": {"secretKeyRef": secret}})
    if first.folder is not None:
        mounts.append({"name": "model", "mountPath": first.folder, "readOnly": True})
        volumes.append({"name": "model", "hostPath": {"path": first.folder, "type": "Directory"}})
    command = first.command(ROUTER_PORT)
    container: dict[str, object] = {
        "name": "serve",
        "image": first.image.image,
        **({"command": list(first.entry_point)} if first.entry_point else {}),
        **({"args": [word.replace("$(", "$$(") for word in command]} if command else {}),
        "env": environment,
        "ports": [{"name": "http", "containerPort": ROUTER_PORT}],
        "resources": placement.resources,
        "startupProbe": probe(STARTED_PATH, 5, STARTUP_S // 5 if first.is_vllm else 120),
        "readinessProbe": probe(HEALTH_PATH, 5, 2),
        **({"livenessProbe": probe(HEALTH_PATH, 10, 6)} if first.is_vllm else {}),
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP_S}}},
        "securityContext": {"allowPrivilegeEscalation": False},
        "volumeMounts": mounts,
    }
    pod: dict[str, object] = {
        "terminationGracePeriodSeconds": GRACE_S,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": volumes,
    }
    annotations = _annotations(workload, first.gpu.type, (first.tenant,))
    if first.image.placeholder:
        annotations["torchsplit/placeholder-image"] = "true"
    return _slice_deployment(
        workload, name, "own-image", [first.serves], replicas, pod, placement, annotations,
        PROMETHEUS_ANNOTATIONS if first.is_vllm else {},
    )  # fmt: skip


def _shared_memory(gib: int) -> dict[str, object]:
    return {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": f"{gib}Gi"}}


def _slice_deployment(
    workload: Workload,
    name: str,
    component: str,
    serves: Sequence[str],
    replicas: int,
    pod: dict[str, object],
    placement: PodPlacement,
    annotations: Mapping[str, str],
    pod_annotations: Mapping[str, str],
) -> Mapping[str, object]:
    """A Deployment whose pods take a slice each."""
    selector = {"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "torchsplit"}
    pod_labels = {
        **selector,
        "app.kubernetes.io/component": component,
        **{f"{SERVES}/{label}": "true" for label in serves},
    }
    if placement.nodes:
        required = {"nodeSelectorTerms": list(placement.nodes)}
        pod["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    pod["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    if placement.claims:
        pod["resourceClaims"] = list(placement.claims)
    meta = manifest_meta(name, component, workload, {ALLOCATED_BY: placement.allocated_by})
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {**meta, "annotations": annotations},
        "spec": {
            "replicas": replicas,
            # No slice is spare: a new pod can only start after an old one has ended.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "selector": {"matchLabels": selector},
            "template": {
                "metadata": {"labels": pod_labels, "annotations": {**annotations, **pod_annotations}},
                "spec": pod,
            },
        },
    }


def _annotations(workload: Workload, gpu_type: str, tenants: Sequence[Tenant]) -> dict[str, str]:
    return {
        "torchsplit/plan": workload.plan,
        "torchsplit/gpu-type": gpu_type,
        "torchsplit/tenants": ", ".join(
            f"{one_line(tenant.model)} {one_line(tenant.stage)}" for tenant in tenants
        ),
        "torchsplit/planned-rps-per-replica": ", ".join(f"{tenant.throughput_rps:g}" for tenant in tenants),
        "torchsplit/planned-throughput": "; ".join(map(format_tenant, tenants)),
    }


def image_pod(
    workload: Workload,
    environment: Mapping[str, str],
    resources: Mapping[str, object],
    mounts: Sequence[Mapping[str, object]],
) -> dict[str, object]:
    """A pod of the image: ready when the models are warm; leaves its Services before it drains."""

    def probe(path: str, period_s: int, failures: int) -> dict[str, object]:
        return {
            "httpGet": {"path": path, "port": "http"},
            "periodSeconds": period_s,
            "timeoutSeconds": 5,
            "failureThreshold": failures,
        }

    container = {
        "name": "serve",
        "image": image_name(workload),
        "env": [{"name": key, "value": value} for key, value in environment.items()],
        "ports": [{"name": "http", "containerPort": ROUTER_PORT}],
        "resources": resources,
        # Loading and warming up may take minutes; after that a missing response is a fault.
        "startupProbe": probe("/v2/health/ready", 5, 120),
        "readinessProbe": probe("/v2/health/ready", 5, 2),
        "livenessProbe": probe("/v2/health/live", 10, 6),
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP_S}}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
        },
        "volumeMounts": list(mounts),
    }
    return {
        "terminationGracePeriodSeconds": GRACE_S,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
    }
