"""What runs on the nodes of a plan: Deployments of its kinds of servers, Services of its models, a router of cut ones.

Its pods may only run on nodes of the plan that have such slices, and each takes one, so all pods of a plan fit
whichever way the scheduler turns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchsplit_core.deployment.files import DeploymentFile
from torchsplit_core.deployment.hosts import Host
from torchsplit_core.deployment.image import image_name
from torchsplit_core.deployment.names import one_line
from torchsplit_core.deployment.routes import service_route_file
from torchsplit_core.deployment.server_plans import server_files
from torchsplit_core.deployment.servers import ROUTER_PORT, Kind, Part, Route, Workload
from torchsplit_core.deployment.yaml_text import Block, document, documents
from torchsplit_core.planning.sureness.words import tenant_words

MIG_LABEL = "nvidia.com/mig.config"
ROUTER = "torchsplit-router"
CLAIM = "torchsplit-models"
"""The volume claim that the component models-volume reads the models' parts from."""

SERVES = "serves.torchsplit"
"""Before the label of each part that a pod serves: a shared slice serves several."""

LEAVE_S = 5
"""Between the pod's leaving its Services and SIGTERM: what is on its way still arrives."""
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
    """The manifests, and a kustomization that names them all. `labels` are the MIG configurations of the hosts."""
    head = f"# Plan {workload.plan}: {{what}}. Not tested on hardware.\n"
    cut = tuple(route for route in workload.routes if len(route.steps) > 1)
    named: dict[str, tuple[str, Sequence[object]]] = {
        "servers.yaml": (
            "the plan that each kind of server runs",
            [_plan_map(workload, kind) for kind in workload.kinds],
        ),
        "deployments.yaml": (
            "a Deployment for each kind of server, a replica for each slice",
            [_deployment(workload, kind, _nodes(kind, hosts, labels)) for kind in workload.kinds],
        ),
        "services.yaml": (
            "a Service for each model, and for each part of a cut one",
            [*(_part_service(part) for part in _parts(workload)), *map(_route_service, cut)],
        ),
    }
    if cut:
        named["router.yaml"] = ("leads requests for cut models through their parts", _router(workload, cut))
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": list(named),
        "images": [
            {
                "name": image_name(workload).partition(":")[0],
                "newName": "torchsplit-serve",
                "newTag": workload.plan,
            }
        ],
    }
    note = "# Set newName to your registry's: pods pull the image from there.\n"
    return (
        *(
            DeploymentFile(f"kubernetes/{name}", head.format(what=what) + documents(found))
            for name, (what, found) in named.items()
        ),
        DeploymentFile(
            "kubernetes/kustomization.yaml",
            head.format(what="everything but the MIG configuration") + note + document(kustomization),
        ),
        DeploymentFile("kubernetes/models-volume/kustomization.yaml", _COMPONENT),
    )


def resource_name(profile: str) -> str:
    """The device plugin's resource for a profile; a plus, not allowed in it, becomes a dot."""
    return f"nvidia.com/mig-{profile.replace('+', '.')}" if profile else "nvidia.com/gpu"


def service_name(label: str) -> str:
    """A Service's name begins with a letter (RFC 1035); a model's may not."""
    return f"model-{label}"


def _parts(workload: Workload) -> tuple[Part, ...]:
    return tuple(dict.fromkeys(job.part for kind in workload.kinds for job in kind.jobs))


def _nodes(kind: Kind, hosts: tuple[Host, ...], labels: tuple[str, ...]) -> list[str]:
    """The MIG configurations with such a slice, used or free."""
    return list(
        dict.fromkeys(
            label
            for host, label in zip(hosts, labels, strict=True)
            if any(
                gpu.type == kind.gpu_type and any(item.profile == kind.profile for item in gpu.slices)
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


def _plan_map(workload: Workload, kind: Kind) -> Mapping[str, object]:
    texts = {
        file.name.rpartition("/")[2]: Block(file.text) for file in server_files(workload, "servers", (kind,))
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _meta(kind.label, "server", workload),
        "data": texts,
    }


def _resources(kind: Kind) -> dict[str, object]:
    """One slice, one whole GPU, or whole cores.

    Cores are a pod's own where its requests are its limits, memory's too, and the kubelet's CPU manager is static.
    """
    if kind.cores is None:
        return {"limits": {resource_name(kind.profile): 1}}
    known = [tenant.memory_gib for tenant in kind.tenants]
    held: dict[str, object] = {"cpu": kind.cores}
    if all(known):
        held["memory"] = f"{round(sum(one or 0.0 for one in known)) + 2}Gi"
    return {"requests": held, "limits": held}


def _deployment(workload: Workload, kind: Kind, labels: list[str]) -> Mapping[str, object]:
    replicas = sum(server.kind is kind for server in workload.servers)
    annotations = _annotations(workload, kind)
    selector = {"app.kubernetes.io/name": kind.label, "app.kubernetes.io/part-of": "torchsplit"}
    pod_labels: dict[str, str] = {
        **selector,
        "app.kubernetes.io/component": "server",
        **{f"{SERVES}/{job.part.label}": "true" for job in kind.jobs},
    }
    mounts: list[Mapping[str, object]] = [
        {"name": "plan", "mountPath": f"/srv/servers/{kind.label}", "readOnly": True},
        {"name": "shared-memory", "mountPath": "/dev/shm"},
    ]
    environment = {"TORCHSPLIT_SERVER": kind.label, "TORCHSPLIT_PORT": str(ROUTER_PORT)}
    if kind.mps:
        environment["TORCHSPLIT_MPS"] = "1"
    pod = _pod(workload, environment, _resources(kind), mounts)
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
        "volumes": [
            {"name": "plan", "configMap": {"name": kind.label}},
            {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
        ],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {**_meta(kind.label, "server", workload), "annotations": annotations},
        "spec": {
            "replicas": replicas,
            # No slice is spare: a new pod can start only where an old one has gone.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "selector": {"matchLabels": selector},
            "template": {
                "metadata": {"labels": pod_labels, "annotations": {**annotations, **_SCRAPED}},
                "spec": pod,
            },
        },
    }


_SCRAPED = {
    "prometheus.io/scrape": "true",
    "prometheus.io/port": str(ROUTER_PORT),
    "prometheus.io/path": "/metrics",
}


def _annotations(workload: Workload, kind: Kind) -> dict[str, str]:
    return {
        "torchsplit/plan": workload.plan,
        "torchsplit/gpu-type": kind.gpu_type,
        "torchsplit/tenants": ", ".join(
            f"{one_line(tenant.model)} {one_line(tenant.stage)}" for tenant in kind.tenants
        ),
        "torchsplit/planned-rps-per-replica": ", ".join(
            f"{tenant.throughput_rps:g}" for tenant in kind.tenants
        ),
        "torchsplit/planned-throughput": "; ".join(map(tenant_words, kind.tenants)),
    }


def _pod(
    workload: Workload,
    environment: Mapping[str, str],
    resources: Mapping[str, object],
    mounts: Sequence[Mapping[str, object]],
) -> dict[str, object]:
    """A pod of the image: ready when the models are warm, leaving its Services before it drains."""

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
        # Loading and warming up may take minutes; after that an answer that stays away is a fault.
        "startupProbe": probe("/v2/health/ready", 5, 120),
        "readinessProbe": probe("/v2/health/ready", 5, 2),
        "livenessProbe": probe("/v2/health/live", 10, 6),
        "lifecycle": {"preStop": {"sleep": {"seconds": LEAVE_S}}},
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
    ours: dict[str, str] = {**selector, "app.kubernetes.io/part-of": "torchsplit"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": service_name(name),
            "labels": {"app.kubernetes.io/part-of": "torchsplit"},
            "annotations": {"torchsplit/model": one_line(model)},
        },
        "spec": {
            "selector": ours,
            "ports": [{"name": "http", "port": ROUTER_PORT, "targetPort": "http"}],
        },
    }


def _part_service(part: Part) -> dict[str, object]:
    return _service(part.label, {f"{SERVES}/{part.label}": "true"}, part.name)


def _route_service(route: Route) -> dict[str, object]:
    return _service(route.label, {"app.kubernetes.io/name": ROUTER}, route.model)


def _router(workload: Workload, cut: tuple[Route, ...]) -> list[Mapping[str, object]]:
    """The router's routes and its two pods, on any node."""
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
            "data": {"routes.json": Block(routes.text)},
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
                        "annotations": {"torchsplit/plan": workload.plan, **_SCRAPED},
                    },
                    "spec": pod,
                },
            },
        },
    ]
