"""The workload of a plan's slices: a server each, server kinds, and the models as files that the servers read.

A server serves *parts*, each under one name: a whole model, or a stage of a cut one, in its own .pt2. So servers know
nothing of cuts, and a *route* leads a request through the parts of a cut model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torchsplit_core.deployment.custom_images import CustomImage, ImageContainer, build_containers
from torchsplit_core.deployment.hosts import Host, HostGpu, core_range
from torchsplit_core.deployment.safe_text import dns_labels, one_line
from torchsplit_core.hardware import profile_cores
from torchsplit_core.planning.outcome.instances import planned_instances, point_key, point_table
from torchsplit_core.values import (
    InputFault,
    PlanModel,
    PlannedSlice,
    PlanOutcome,
    PlanRequest,
    Point,
    StageManifest,
    StageValue,
    Tenant,
    Variant,
    tenants_on,
)

FIRST_PORT = 8001
"""First port of the servers that share a host's ports; the one below is the address of all models."""
ROUTER_PORT = 8000
MOST_SERVERS_A_HOST = 1000
"""Number of ports from FIRST_PORT on."""

Manifests = Mapping[tuple[str, str], StageManifest]
"""The written parts of each model used, by model and variant."""


@dataclass(frozen=True, slots=True)
class ServedPart:
    """A served part: `name` in the protocol, `label` where only plain names are allowed; `file` is its path in the
    image.
    """

    model: str
    variant: str
    stage: str
    name: str
    label: str
    file: str
    inputs: tuple[StageValue, ...]
    outputs: tuple[StageValue, ...]


@dataclass(frozen=True, slots=True)
class PartInstance:
    """A tenant as a part at a point of the request. Equal ones may differ in their tenants' figures."""

    part: ServedPart
    share: float
    point: Point
    tenant: Tenant = field(compare=False, repr=False)

    @property
    def batch_size(self) -> int:
        """Of its point."""
        return self.point.batch_size

    @property
    def processes(self) -> int:
        """Of its point."""
        return self.point.processes


@dataclass(frozen=True, slots=True)
class ServerKind:
    """Servers that are alike in models, slice and GPU type. The tenants are those of its first server."""

    label: str
    gpu_type: str
    profile: str
    instances: tuple[PartInstance, ...]

    @property
    def tenants(self) -> tuple[Tenant, ...]:
        """Those of its instances."""
        return tuple(instance.tenant for instance in self.instances)

    @property
    def cores(self) -> int | None:
        """Number of cores of its slice, None on a GPU."""
        return profile_cores(self.profile)

    @property
    def needs_mps(self) -> bool:
        """Whether a tenant has several processes on a GPU, which only run concurrently under CUDA's MPS."""
        return self.cores is None and any(instance.processes > 1 for instance in self.instances)


@dataclass(frozen=True, slots=True)
class SliceServer:
    """One slice with tenants. `port`: its own on the host."""

    label: str
    kind: ServerKind
    host: Host
    gpu: HostGpu
    slice: PlannedSlice
    port: int

    @property
    def cores(self) -> str | None:
        """Its cores of the host in the syntax of systemd and Docker, None on a GPU."""
        return core_range(self.host, self.gpu, self.slice)


@dataclass(frozen=True, slots=True)
class Route:
    """The parts that serve a model's request, in order.

    `outputs`: the returned values by their public names, in order; `inputs`: the values it takes.
    """

    model: str
    label: str
    steps: tuple[ServedPart, ...]
    inputs: tuple[StageValue, ...]
    outputs: tuple[tuple[str, StageValue], ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """The input of all workload formats.

    `waits_ms`: how long a batch waits for requests, by model. `by_part`: the servers of each part, by its label.
    `containers`: those of custom images, which are in none of the others.
    """

    plan: str
    kinds: tuple[ServerKind, ...]
    servers: tuple[SliceServer, ...]
    routes: tuple[Route, ...]
    waits_ms: Mapping[str, float]
    by_part: Mapping[str, tuple[SliceServer, ...]]
    containers: tuple[ImageContainer, ...] = ()

    def servers_of(self, host: Host) -> tuple[SliceServer, ...]:
        """Its servers."""
        return tuple(server for server in self.servers if server.host is host)

    def containers_of(self, host: Host) -> tuple[ImageContainer, ...]:
        """Its containers of custom images."""
        return tuple(container for container in self.containers if container.host is host)

    def servers_and_containers_of(self, host: Host) -> tuple[SliceServer | ImageContainer, ...]:
        """Both."""
        return (*self.servers_of(host), *self.containers_of(host))

    def servers_for(self, part: ServedPart) -> tuple[SliceServer, ...]:
        """The servers of a part."""
        return self.by_part[part.label]


def placeholder_note(workload: Workload, *, llms_alone: bool = False) -> str:
    """Comment lines that name the models (the LLMs alone) without an image; empty if all have one."""
    unknown = dict.fromkeys(
        (container.tenant.model, container.image.llm is not None)
        for container in workload.containers
        if container.image.placeholder and (container.is_vllm or not llms_alone)
    )
    lines = []
    for name, is_llm in unknown:
        what = "model that vLLM loads" if is_llm else "image"
        remedy = "with the request's models[].source" if is_llm else "with --image MODEL=IMAGE"
        lines.append(
            f"# PLACEHOLDER: no {what} is known for {one_line(name)}. Set it here, or deploy again {remedy}.\n"
        )
    return "".join(lines)


def used_variants(
    plan: PlanOutcome, request: PlanRequest, images: Mapping[str, CustomImage]
) -> tuple[tuple[PlanModel, Variant], ...]:
    """The models with a tenant that TorchSplit runs, each with its variant.

    Raises InputFault for a stage of a cut without nodes, and for a tenant that the request does not have.
    """
    used = {
        (instance.model.name, instance.variant.name): (instance.model, instance.variant)
        for instance in planned_instances(plan.gpus, request)
        if instance.model.name not in images
    }
    for (name, variant_name), (_, variant) in used.items():
        for stage in variant.stages if len(variant.stages) > 1 else ():
            if not stage.nodes:
                raise InputFault(
                    f"models: {name}: variants: {variant_name}: stage {stage.name}: nodes",
                    "is empty, so nobody knows what the stage runs",
                    "Make the request with --candidates FILE, which fills the nodes.",
                )
    return tuple(used.values())


def part_folders(plan: PlanOutcome) -> dict[tuple[str, str], str]:
    """Folders of the parts of each model and variant in use, under `models/`."""
    return dns_labels(
        {
            (tenant.model, tenant.variant): (tenant.model, tenant.variant)
            for *_, tenant in tenants_on(plan.gpus)
        }
    )


def build_workload(
    plan: PlanOutcome,
    request: PlanRequest,
    hosts: tuple[Host, ...],
    manifests: Manifests,
    images: Mapping[str, CustomImage],
) -> Workload:
    """Servers, server kinds and routes of a plan with written parts, and the containers of `images`.

    Raises InputFault as `used_variants` does, for a value without a batch to divide, and for a host with more servers
    than ports.
    """
    used = used_variants(plan, request, images)
    parts, routes = _parts(used, part_folders(plan), manifests)
    points = point_table(request)

    def part_instances(gpu: HostGpu, item: PlannedSlice) -> tuple[PartInstance, ...]:
        """Those of a slice that TorchSplit runs."""
        return tuple(
            PartInstance(
                parts[tenant.model, tenant.variant, tenant.stage],
                round(tenant.share, 6),
                points[point_key(gpu.type, item.profile, tenant)],
                tenant,
            )
            for tenant in sorted(
                item.tenants, key=lambda tenant: (tenant.model, tenant.stage, tenant.batch_size)
            )
            if tenant.model not in images
        )

    placed = [
        (host, gpu, item, (gpu.type, item.profile, instances))
        for host in hosts
        for gpu in host.gpus
        for item in gpu.slices
        if (instances := part_instances(gpu, item))
    ]
    labels = dns_labels({key: _label_words(*key) for *_, key in placed})
    kinds = {key: ServerKind(label, *key) for key, label in labels.items()}
    ports: dict[str | None, int] = {}

    def next_port(host: Host) -> int:
        """The next port of a host."""
        ports[host.name] = ports.get(host.name, FIRST_PORT - 1) + 1
        if ports[host.name] >= FIRST_PORT + MOST_SERVERS_A_HOST:
            raise InputFault(
                "plan gpus",
                f"{host.display_name} has more than {MOST_SERVERS_A_HOST} servers",
                "Use more hosts.",
            )
        return ports[host.name]

    servers = _servers([(host, gpu, item, kinds[key]) for host, gpu, item, key in placed], next_port)
    by_part: dict[str, list[SliceServer]] = {}
    for server in servers:
        for label in {instance.part.label for instance in server.kind.instances}:
            by_part.setdefault(label, []).append(server)
    used_labels = {part.label for part in parts.values()} | {route.label for route in routes}
    return Workload(
        plan.request_sha256[:12],
        tuple(kinds.values()),
        servers,
        routes,
        {model.name: model.max_wait_ms or 0.0 for model in plan.models},
        {label: tuple(serving) for label, serving in by_part.items()},
        build_containers(hosts, images, used_labels, next_port),
    )


def _servers(
    placed: list[tuple[Host, HostGpu, PlannedSlice, ServerKind]], next_port: Callable[[Host], int]
) -> tuple[SliceServer, ...]:
    names = dns_labels(
        {
            (host.name, gpu.id, item.start): (host.name or "", f"gpu{gpu.index}" if not gpu.is_cpu else "cpu",
                                             item.profile or "whole", f"at{item.start}")
            for host, gpu, item, _ in placed
        }
    )  # fmt: skip
    return tuple(
        SliceServer(names[host.name, gpu.id, item.start], kind, host, gpu, item, next_port(host))
        for host, gpu, item, kind in placed
    )


def _label_words(gpu_type: str, profile: str, instances: tuple[PartInstance, ...]) -> list[str]:
    """A readable name: what runs, where, and how."""
    parts = [instance.part.label for instance in instances]
    sizes = [text for instance in instances for text in (f"b{instance.batch_size}", f"p{instance.processes}")]
    return [*parts, profile or "whole", gpu_type, *sizes]


def _parts(
    used: tuple[tuple[PlanModel, Variant], ...],
    folders: Mapping[tuple[str, str], str],
    manifests: Manifests,
) -> tuple[dict[tuple[str, str, str], ServedPart], tuple[Route, ...]]:
    labels = dns_labels(
        {(model.name,): (model.name,) for model, _ in used}
        | {
            (model.name, variant.name, stage.name): (model.name, stage.name)
            for model, variant in used
            if len(variant.stages) > 1
            for stage in variant.stages
        }
    )
    used_names = {model.name for model, _ in used}
    parts: dict[tuple[str, str, str], ServedPart] = {}
    routes = []
    for model, variant in used:
        manifest = manifests[model.name, variant.name]
        _check_manifest(model, variant, manifest)
        steps = []
        for stage, written in zip(variant.stages, manifest.stages, strict=True):
            cut = len(variant.stages) > 1
            key = (model.name, variant.name, stage.name)
            label = labels[key if cut else (model.name,)]
            part = ServedPart(
                *key,
                name=_unused_name(label, used_names) if cut else model.name,
                label=label,
                file=f"models/{folders[model.name, variant.name]}/{written.file}",
                inputs=written.inputs,
                outputs=written.outputs,
            )
            parts[key] = part
            steps.append(part)
        known = {value.name: value for step in steps for value in (*step.inputs, *step.outputs)}
        # As named by `torchsplit serve`: inputs as in the graph, outputs by number.
        inputs = [known[slot.name] for slot in manifest.inputs if slot.name in known]
        output_values = [known[slot.name] for slot in manifest.outputs if slot.name in known]
        outputs = tuple((f"output_{number}", value) for number, value in enumerate(output_values))
        routes.append(Route(model.name, labels[(model.name,)], tuple(steps), tuple(inputs), outputs))
    return parts, tuple(routes)


def _unused_name(label: str, used_names: set[str]) -> str:
    """A name in the protocol that no model has."""
    while label in used_names:
        label += "-stage"
    return label


def _check_manifest(model: PlanModel, variant: Variant, manifest: StageManifest) -> None:
    if len(manifest.stages) != len(variant.stages):
        raise InputFault(
            f"models: {model.name}: variants: {variant.name}",
            f"has {len(variant.stages)} stages, of which only {len(manifest.stages)} compute something",
            "Cut the model again.",
        )
    for part in manifest.stages:
        for value in (*part.inputs, *part.outputs):
            if value.shape is None or not value.shape or not isinstance(value.shape[0], str):
                raise InputFault(
                    f"models: {model.name}: variants: {variant.name}",
                    f"the value {value.name} is {_format_shape(value)}, not a tensor whose first "
                    f"dimension is the batch, so "
                    "requests of several clients cannot go in one batch",
                    "Give the model such inputs and results; for a cut, forbid this variant and plan again.",
                )


def _format_shape(value: StageValue) -> str:
    return f"a {value.kind}" if value.shape is None else " × ".join(map(str, value.shape)) or "a scalar"
