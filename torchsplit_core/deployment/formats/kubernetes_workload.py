"""The workload on the nodes of a plan: Deployments of server kinds, Services of models, a router for cut models.

Its pods only run on nodes of the plan with such slices, and each takes one, so all pods fit wherever the scheduler
places them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchsplit_core.deployment.custom_images import ImageContainer
from torchsplit_core.deployment.files import DeploymentFile
from torchsplit_core.deployment.hosts import Host
from torchsplit_core.deployment.image import image_name
from torchsplit_core.deployment.routes import service_route_file
from torchsplit_core.deployment.safe_text import one_line
from torchsplit_core.deployment.server_plans import server_files
from torchsplit_core.deployment.workload import (
    ROUTER_PORT,
    Route,
    ServedPart,
    ServerKind,
    Workload,
    placeholder_note,
)
from torchsplit_core.deployment.yaml_text import BlockText, document, documents
from torchsplit_core.hardware import profile_cores
from torchsplit_core.planning.confidence.formatting import format_tenant
from torchsplit_core.values import Tenant

MIG_LABEL = "nvidia.com/mig.config"
ROUTER = "torchsplit-router"
CLAIM = "torchsplit-models"
"""The volume claim from which the component models-volume reads the models' parts."""

SERVES = "serves.torchsplit"
"""Prefix of the label of each part that a pod serves: a shared slice serves several."""

PRE_STOP_S = 5
"""From the removal of the pod from its Services to SIGTERM: requests on their way still arrive."""
GRACE_S = 60
"""From there to SIGKILL: the server drains for up to 30 s."""

_COMPONENT = f"""\
# The models' parts from a volume instead of the image. Not tested on hardware.
# Copy image/models into the claim {CLAIM} (ReadOnlyMany or ReadWriteMany), then add to ../kustomization.yaml:
#   components: [models-volume]
apiVersion: kustomize.config.k8s.io/v1alpha1
kind: Component
patches:
- target:
    kind: Deployment
    labelSelector: app.kubernetes.io/component=server
  patch: |-
    - op: add
      path: /spec/template/spec/volumes/-
      value: {{name: models, persistentVolumeClaim: {{claimName: {CLAIM}, readOnly: true}}}}
    - op: add
      path: /spec/template/spec/containers/0/volumeMounts/-
      value: {{name: models, mountPath: /srv/models, readOnly: true}}
"""


def workload_files(
    workload: Workload, hosts: tuple[Host, ...], labels: tuple[str, ...]
) -> tuple[DeploymentFile, ...]:
    """The manifests, and a kustomization that lists them. `labels`: the MIG configurations of the hosts."""
    head = f"# Plan {workload.plan}: {{what}}. Not tested on hardware.\n"
    cut = tuple(route for route in workload.routes if len(route.steps) > 1)
    # The scheduler assigns a slice to one container.
    by_kind: dict[str, list[ImageContainer]] = {}
    for container in workload.containers:
        if container.has_whole_slice:
            by_kind.setdefault(container.kind, []).append(container)
    served = dict.fromkeys(
        (container.serves, container.tenant.model)
        for containers in by_kind.values()
        for container in containers
    )
    manifests: dict[str, tuple[str, Sequence[object]]] = {}
    if workload.kinds:
        manifests["servers.yaml"] = (
            "the plan that each kind of server runs",
            [_plan_map(workload, kind) for kind in workload.kinds],
        )
    manifests["deployments.yaml"] = (
        "a Deployment for each kind of server, a replica for each slice",
        [
            *(
                _deployment(workload, kind, _nodes(kind.gpu_type, kind.profile, hosts, labels))
                for kind in workload.kinds
            ),
            *(
                _container_deployment(
                    workload,
                    containers,
                    _nodes(containers[0].gpu.type, containers[0].slice.profile, hosts, labels),
                )
                for containers in by_kind.values()
            ),
        ],
    )
    manifests["services.yaml"] = (
        "a Service for each model, and for each part of a cut one",
        [
            *(_part_service(part) for part in _parts(workload)),
            *map(_route_service, cut),
            *(_service(label, {f"{SERVES}/{label}": "true"}, model) for label, model in served),
        ],
    )
    if cut:
        manifests["router.yaml"] = (
            "leads requests for cut models through their parts",
            _router(workload, cut),
        )
    placeholders = dict.fromkeys(
        containers[0].image.image for containers in by_kind.values() if containers[0].image.placeholder
    )
    images = (
        [(image_name(workload).partition(":")[0], "torchsplit-serve", workload.plan)]
        if workload.kinds
        else []
    )
    images += [(name, name, tag) for name, _, tag in (image.rpartition(":") for image in placeholders)]
    kustomization: dict[str, object] = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": list(manifests),
    }
    if images:
        kustomization["images"] = [{"name": name, "newName": new, "newTag": tag} for name, new, tag in images]
    note = "# Set newName to your registry's: pods pull the image from there.\n" if images else ""
    components = (
        (DeploymentFile("kubernetes/models-volume/kustomization.yaml", _COMPONENT),) if workload.kinds else ()
    )
    note += placeholder_note(workload)
    return (
        *(
            DeploymentFile(f"kubernetes/{name}", head.format(what=what) + documents(objects))
            for name, (what, objects) in manifests.items()
        ),
        DeploymentFile(
            "kubernetes/kustomization.yaml",
            head.format(what="everything but the MIG configuration") + note + document(kustomization),
        ),
        *components,
    )


def resource_name(profile: str) -> str:
    """The device plugin's resource for a profile; its plus, which is not allowed, becomes a dot."""
    return f"nvidia.com/mig-{profile.replace('+', '.')}" if profile else "nvidia.com/gpu"


def service_name(label: str) -> str:
    """A Service's name begins with a letter (RFC 1035); a model's need not."""
    return f"model-{label}"


def _parts(workload: Workload) -> tuple[ServedPart, ...]:
    return tuple(dict.fromkeys(instance.part for kind in workload.kinds for instance in kind.instances))


def _nodes(gpu_type: str, profile: str, hosts: tuple[Host, ...], labels: tuple[str, ...]) -> list[str]:
    """The MIG configurations with such a slice, used or free."""
    return list(
        dict.fromkeys(
            label
            for host, label in zip(hosts, labels, strict=True)
            if any(
                gpu.type == gpu_type and any(item.profile == profile for item in gpu.slices)
                for gpu in host.gpus
            )
        )
    )


def _meta(name: str, component: str, workload: Workload, **more: object) -> dict[str, object]:
    labels = {
        "app.kubernetes.io/name": name,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/part-of": "torchsplit",
    }
    return {"name": name, "labels": labels, "annotations": {"torchsplit/plan": workload.plan}, **more}


def _plan_map(workload: Workload, kind: ServerKind) -> Mapping[str, object]:
    texts = {
        file.name.rpartition("/")[2]: BlockText(file.text)
        for file in server_files(workload, "servers", (kind,))
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _meta(kind.label, "server", workload),
        "data": texts,
    }


def _resources(profile: str, tenants: Sequence[Tenant]) -> dict[str, object]:
    """One slice, one whole GPU, or whole cores.

    A pod has cores exclusively if its requests equal its limits, also of memory, and the kubelet's CPU manager is
    static.
    """
    cores = profile_cores(profile)
    if cores is None:
        return {"limits": {resource_name(profile): 1}}
    known = [tenant.memory_gib for tenant in tenants]
    amounts: dict[str, object] = {"cpu": cores}
    if all(known):
        amounts["memory"] = f"{round(sum(memory_gib or 0.0 for memory_gib in known)) + 2}Gi"
    return {"requests": amounts, "limits": amounts}


def _deployment(workload: Workload, kind: ServerKind, labels: list[str]) -> Mapping[str, object]:
    mounts: list[Mapping[str, object]] = [
        {"name": "plan", "mountPath": f"/srv/servers/{kind.label}", "readOnly": True},
        {"name": "shared-memory", "mountPath": "/dev/shm"},
    ]
    environment = {"TORCHSPLIT_SERVER": kind.label, "TORCHSPLIT_PORT": str(ROUTER_PORT)}
    if kind.needs_mps:
        environment["TORCHSPLIT_MPS"] = "1"
    pod = _pod(workload, environment, _resources(kind.profile, kind.tenants), mounts)
    pod["volumes"] = [{"name": "plan", "configMap": {"name": kind.label}}, _SHARED_MEMORY]
    replicas = sum(server.kind is kind for server in workload.servers)
    annotations = _annotations(workload, kind.gpu_type, kind.tenants)
    return _slice_deployment(
        workload,
        kind.label,
        "server",
        [instance.part.label for instance in kind.instances],
        replicas,
        pod,
        labels,
        annotations,
        _PROMETHEUS_ANNOTATIONS,
    )


def _container_deployment(
    workload: Workload, containers: list[ImageContainer], labels: list[str]
) -> Mapping[str, object]:
    """A custom image: ready when its port answers; only its author knows its privileges."""
    first = containers[0]
    probe = {"tcpSocket": {"port": "http"}, "periodSeconds": 5, "timeoutSeconds": 5}
    container: dict[str, object] = {
        "name": "serve",
        "image": first.image.image,
        **(
            {"args": [word.replace("$(", "$$(") for word in first.image.command]}
            if first.image.command
            else {}
        ),
        "env": [
            {"name": key, "value": value.replace("$(", "$$(")}
            for key, value in first.environment(ROUTER_PORT).items()
        ],
        "ports": [{"name": "http", "containerPort": ROUTER_PORT}],
        "resources": _resources(first.slice.profile, (first.tenant,)),
        "startupProbe": {**probe, "failureThreshold": 120},
        "readinessProbe": {**probe, "failureThreshold": 2},
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP_S}}},
        "securityContext": {"allowPrivilegeEscalation": False},
        "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}],
    }
    pod: dict[str, object] = {
        "terminationGracePeriodSeconds": GRACE_S,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [_SHARED_MEMORY],
    }
    annotations = _annotations(workload, first.gpu.type, (first.tenant,))
    if first.image.placeholder:
        annotations["torchsplit/placeholder-image"] = "true"
    return _slice_deployment(
        workload, first.kind, "own-image", [first.serves], len(containers), pod, labels, annotations, {}
    )


_SHARED_MEMORY = {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}


def _slice_deployment(
    workload: Workload,
    name: str,
    component: str,
    serves: Sequence[str],
    replicas: int,
    pod: dict[str, object],
    labels: list[str],
    annotations: Mapping[str, str],
    pod_annotations: Mapping[str, str],
) -> Mapping[str, object]:
    """A Deployment whose pods take a slice each, on nodes with these MIG configurations."""
    selector = {"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "torchsplit"}
    pod_labels = {
        **selector,
        "app.kubernetes.io/component": component,
        **{f"{SERVES}/{label}": "true" for label in serves},
    }
    pod |= {
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": MIG_LABEL, "operator": "In", "values": labels}]}
                    ]
                }
            }
        },
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {**_meta(name, component, workload), "annotations": annotations},
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


_PROMETHEUS_ANNOTATIONS = {
    "prometheus.io/scrape": "true",
    "prometheus.io/port": str(ROUTER_PORT),
    "prometheus.io/path": "/metrics",
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


def _pod(
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


def _service(name: str, selector: dict[str, str], model: str) -> dict[str, object]:
    pod_selector: dict[str, str] = {**selector, "app.kubernetes.io/part-of": "torchsplit"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": service_name(name),
            "labels": {"app.kubernetes.io/part-of": "torchsplit"},
            "annotations": {"torchsplit/model": one_line(model)},
        },
        "spec": {
            "selector": pod_selector,
            "ports": [{"name": "http", "port": ROUTER_PORT, "targetPort": "http"}],
        },
    }


def _part_service(part: ServedPart) -> dict[str, object]:
    return _service(part.label, {f"{SERVES}/{part.label}": "true"}, part.name)


def _route_service(route: Route) -> dict[str, object]:
    return _service(route.label, {"app.kubernetes.io/name": ROUTER}, route.model)


def _router(workload: Workload, cut: tuple[Route, ...]) -> list[Mapping[str, object]]:
    """The routes of the router and its two pods, on any node."""
    routes = service_route_file(
        "routes.json", cut, lambda part: f"http://{service_name(part.label)}:{ROUTER_PORT}"
    )
    environment = {"TORCHSPLIT_ROUTES": "/srv/routes/routes.json", "TORCHSPLIT_PORT": str(ROUTER_PORT)}
    pod = _pod(
        workload,
        environment,
        {"requests": {"cpu": "500m", "memory": "512Mi"}},
        [{"name": "routes", "mountPath": "/srv/routes", "readOnly": True}],
    )
    pod["volumes"] = [{"name": "routes", "configMap": {"name": ROUTER}}]
    selector: dict[str, str] = {"app.kubernetes.io/name": ROUTER, "app.kubernetes.io/part-of": "torchsplit"}
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": _meta(ROUTER, "router", workload),
            "data": {"routes.json": BlockText(routes.text)},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": _meta(ROUTER, "router", workload),
            "spec": {
                "replicas": 2,
                "selector": {"matchLabels": selector},
                "template": {
                    "metadata": {
                        "labels": {**selector, "app.kubernetes.io/component": "router"},
                        "annotations": {"torchsplit/plan": workload.plan, **_PROMETHEUS_ANNOTATIONS},
                    },
                    "spec": pod,
                },
            },
        },
    ]
