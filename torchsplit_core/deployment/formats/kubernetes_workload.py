"""The workload on the nodes of a plan: Deployments of server kinds, Services of models, a router for cut models.

Its pods only run on nodes of the plan with such slices, and each takes one, so all pods fit wherever the scheduler
places them. `kubernetes_claims` has the same on ResourceClaims, which also keep what the plan puts on one GPU together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchsplit_core.deployment.custom_images import ImageContainer
from torchsplit_core.deployment.files import DeploymentFile
from torchsplit_core.deployment.formats.kubernetes_claims import claim_files
from torchsplit_core.deployment.formats.kubernetes_pods import (
    PLUGIN,
    PROMETHEUS_ANNOTATIONS,
    SERVES,
    PodPlacement,
    container_deployment,
    image_pod,
    manifest_meta,
    plugin_resources,
    server_deployment,
)
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
from torchsplit_core.values import Tenant

MIG_LABEL = "nvidia.com/mig.config"
ROUTER = "torchsplit-router"
CLAIM = "torchsplit-models"
"""The volume claim from which the component models-volume reads the models' parts."""

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
                server_deployment(
                    workload,
                    kind,
                    kind.label,
                    sum(server.kind is kind for server in workload.servers),
                    _plugin_placement(kind.gpu_type, kind.profile, kind.tenants, hosts, labels),
                )
                for kind in workload.kinds
            ),
            *(
                container_deployment(
                    workload,
                    first,
                    first.kind,
                    len(by_kind[first.kind]),
                    _plugin_placement(first.gpu.type, first.slice.profile, (first.tenant,), hosts, labels),
                )
                for first, *_ in by_kind.values()
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
        containers[0].image.image
        for containers in by_kind.values()
        if containers[0].image.placeholder and containers[0].image.llm is None
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
        *claim_files(workload),
    )


def service_name(label: str) -> str:
    """A Service's name begins with a letter (RFC 1035); a model's need not."""
    return f"model-{label}"


def _parts(workload: Workload) -> tuple[ServedPart, ...]:
    return tuple(dict.fromkeys(instance.part for kind in workload.kinds for instance in kind.instances))


def _plugin_placement(
    gpu_type: str, profile: str, tenants: Sequence[Tenant], hosts: tuple[Host, ...], labels: tuple[str, ...]
) -> PodPlacement:
    """Any such slice of a node whose MIG configuration has some, used or free."""
    values = dict.fromkeys(
        label
        for host, label in zip(hosts, labels, strict=True)
        if any(
            gpu.type == gpu_type and any(item.profile == profile for item in gpu.slices) for gpu in host.gpus
        )
    )
    nodes = [{"matchExpressions": [{"key": MIG_LABEL, "operator": "In", "values": list(values)}]}]
    allocated_by = PLUGIN if profile_cores(profile) is None else ""
    return PodPlacement(nodes, plugin_resources(profile, tenants), allocated_by=allocated_by)


def _plan_map(workload: Workload, kind: ServerKind) -> Mapping[str, object]:
    texts = {
        file.name.rpartition("/")[2]: BlockText(file.text)
        for file in server_files(workload, "servers", (kind,))
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": manifest_meta(kind.label, "server", workload),
        "data": texts,
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
    pod = image_pod(
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
            "metadata": manifest_meta(ROUTER, "router", workload),
            "data": {"routes.json": BlockText(routes.text)},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": manifest_meta(ROUTER, "router", workload),
            "spec": {
                "replicas": 2,
                "selector": {"matchLabels": selector},
                "template": {
                    "metadata": {
                        "labels": {**selector, "app.kubernetes.io/component": "router"},
                        "annotations": {"torchsplit/plan": workload.plan, **PROMETHEUS_ANNOTATIONS},
                    },
                    "spec": pod,
                },
            },
        },
    ]
