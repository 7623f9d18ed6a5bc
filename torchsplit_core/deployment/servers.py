"""What a plan's slices run: a server each, alike where they do the same, and the models as files that those read.

A *part* is what one server serves under one name: a whole model, or one stage of a cut one, each a .pt2 of its
own. So a server knows nothing of cuts, and a *route* leads a request through the parts of a cut model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torchsplit_core.deployment.hosts import Host, HostGpu, cores_before
from torchsplit_core.deployment.names import cluster_names, one_line
from torchsplit_core.deployment.own_images import Container, OwnImage, containers_of
from torchsplit_core.hardware import profile_cores
from torchsplit_core.planning.request.point_keys import PointKey, point_table
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
    point_type,
)

FIRST_PORT = 8001
"""Of a host's servers where they share its ports; the one below is the address of all models."""
ROUTER_PORT = 8000
MOST_SERVERS_A_HOST = 1000
"""So many ports follow on FIRST_PORT."""

Manifests = Mapping[tuple[str, str], StageManifest]
"""The written parts of each model used, by model and variant."""


@dataclass(frozen=True, slots=True)
class Part:
    """One thing that is served: `name` on the wire, `label` wherever only plain names are allowed.

    `file` is where it lies in the image.
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
class Job:
    """A tenant as what it runs: a part, at a point of the request."""

    part: Part
    share: float
    point: Point

    @property
    def batch_size(self) -> int:
        """Of its point."""
        return self.point.batch_size

    @property
    def processes(self) -> int:
        """Of its point."""
        return self.point.processes


@dataclass(frozen=True, slots=True)
class Kind:
    """Servers that are alike: what runs on which slice of which GPU. `tenants` are those of its first server."""

    label: str
    gpu_type: str
    profile: str
    jobs: tuple[Job, ...]
    tenants: tuple[Tenant, ...]

    @property
    def cores(self) -> int | None:
        """How many cores its slice is, None on a GPU."""
        return profile_cores(self.profile)

    @property
    def mps(self) -> bool:
        """Whether a tenant has several processes on a GPU, which run beside each other only under CUDA's MPS."""
        return self.cores is None and any(job.processes > 1 for job in self.jobs)


@dataclass(frozen=True, slots=True)
class Server:
    """One slice with tenants. `port` is its own on the host; `first_core` is where its cores begin if it has any."""

    label: str
    kind: Kind
    host: Host
    gpu: HostGpu
    slice: PlannedSlice
    port: int
    first_core: int

    @property
    def cores(self) -> str | None:
        """Its cores of the host as systemd and Docker write them, None on a GPU."""
        count = self.kind.cores
        return None if count is None else f"{self.first_core}-{self.first_core + count - 1}"


@dataclass(frozen=True, slots=True)
class Route:
    """How a request for a model is answered: part after part.

    `outputs` are the values that it gives back by the names that clients know, in order; `inputs` those it takes.
    """

    model: str
    label: str
    steps: tuple[Part, ...]
    inputs: tuple[StageValue, ...]
    outputs: tuple[tuple[str, StageValue], ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """All that the formats which run something write of.

    `waits_ms`: how long a batch waits for requests, by model. `by_part`: the servers of each part, by its label.
    `containers`: what runs in images of the user's own, in none of the others.
    """

    plan: str
    kinds: tuple[Kind, ...]
    servers: tuple[Server, ...]
    routes: tuple[Route, ...]
    waits_ms: Mapping[str, float]
    by_part: Mapping[str, tuple[Server, ...]]
    containers: tuple[Container, ...] = ()

    def of_host(self, host: Host) -> tuple[Server, ...]:
        """Its servers."""
        return tuple(server for server in self.servers if server.host is host)

    def containers_of(self, host: Host) -> tuple[Container, ...]:
        """Its containers of the user's own images."""
        return tuple(one for one in self.containers if one.host is host)

    def all_of(self, host: Host) -> tuple[Server | Container, ...]:
        """Both."""
        return (*self.of_host(host), *self.containers_of(host))

    def serving(self, part: Part) -> tuple[Server, ...]:
        """The servers of a part."""
        return self.by_part[part.label]


def placeholder_note(workload: Workload) -> str:
    """Lines of a comment that name the models whose image nobody has said yet; empty where all are known."""
    names = dict.fromkeys(one.tenant.model for one in workload.containers if one.image.placeholder)
    told = "Set it here, or deploy again with --image MODEL=IMAGE."
    return "".join(f"# PLACEHOLDER: no image is known for {one_line(name)}. {told}\n" for name in names)


def used_variants(
    plan: PlanOutcome, request: PlanRequest, own: Mapping[str, OwnImage]
) -> tuple[tuple[PlanModel, Variant], ...]:
    """The models with a tenant that TorchSplit runs, each with the variant that does.

    Raises InputFault for a stage of a cut without nodes.
    """
    asked = {model.name: model for model in request.models}
    used = dict.fromkeys(
        (tenant.model, tenant.variant)
        for gpu in plan.gpus
        for item in gpu.slices
        for tenant in item.tenants
        if tenant.model not in own
    )
    found = []
    for name, variant_name in used:
        model = asked[name]
        variant = next(variant for variant in model.variants if variant.name == variant_name)
        if len(variant.stages) > 1:
            for stage in variant.stages:
                if not stage.nodes:
                    raise InputFault(
                        f"models: {name}: variants: {variant_name}: stage {stage.name}: nodes",
                        "is empty, so nobody knows what the stage runs",
                        "Make the request with --candidates FILE, which fills the nodes.",
                    )
        found.append((model, variant))
    return tuple(found)


def part_folders(plan: PlanOutcome) -> dict[tuple[str, str], str]:
    """Where the parts of each model and variant in use lie under `models/`."""
    return cluster_names(
        {
            (tenant.model, tenant.variant): (tenant.model, tenant.variant)
            for gpu in plan.gpus
            for item in gpu.slices
            for tenant in item.tenants
        }
    )


def workload_of(
    plan: PlanOutcome,
    request: PlanRequest,
    hosts: tuple[Host, ...],
    manifests: Manifests,
    own: Mapping[str, OwnImage],
) -> Workload:
    """Servers, kinds and routes of a plan whose parts are written, and the containers of `own` images.

    Raises InputFault as `used_variants` does, where a value has no batch to divide, and where a host has more
    servers than ports.
    """
    used = used_variants(plan, request, own)
    parts, routes = _parts(used, part_folders(plan), manifests)
    points = point_table(request)
    kinds: dict[tuple[str, str, tuple[Job, ...]], Kind] = {}
    found: list[tuple[Host, HostGpu, PlannedSlice, tuple[str, str, tuple[Job, ...]]]] = []
    for host in hosts:
        for gpu in host.gpus:
            for item in gpu.slices:
                tenants = tuple(
                    sorted(
                        (one for one in item.tenants if one.model not in own),
                        key=lambda one: (one.model, one.stage, one.batch_size),
                    )
                )
                if tenants:
                    key = (
                        gpu.type,
                        item.profile,
                        tuple(_job(parts, points, gpu, item, tenant) for tenant in tenants),
                    )
                    kinds.setdefault(key, Kind("", *key, tenants))
                    found.append((host, gpu, item, key))
    labels = cluster_names({key: _readable(kind) for key, kind in kinds.items()})
    kinds = {
        key: Kind(labels[key], kind.gpu_type, kind.profile, kind.jobs, kind.tenants)
        for key, kind in kinds.items()
    }
    ports: dict[str | None, int] = {}

    def port(host: Host) -> int:
        """The next one of a host."""
        ports[host.name] = ports.get(host.name, FIRST_PORT - 1) + 1
        if ports[host.name] >= FIRST_PORT + MOST_SERVERS_A_HOST:
            raise InputFault(
                "plan gpus", f"{host.shown} has more than {MOST_SERVERS_A_HOST} servers", "Use more hosts."
            )
        return ports[host.name]

    servers = _servers([(host, gpu, item, kinds[key]) for host, gpu, item, key in found], port)
    by_part: dict[str, list[Server]] = {}
    for server in servers:
        for label in {job.part.label for job in server.kind.jobs}:
            by_part.setdefault(label, []).append(server)
    taken = {part.label for part in parts.values()} | {route.label for route in routes}
    return Workload(
        plan.request_sha256[:12],
        tuple(kinds.values()),
        servers,
        routes,
        {model.name: model.max_wait_ms or 0.0 for model in plan.models},
        {label: tuple(serving) for label, serving in by_part.items()},
        containers_of(hosts, own, taken, port),
    )


def _servers(
    found: list[tuple[Host, HostGpu, PlannedSlice, Kind]], port: Callable[[Host], int]
) -> tuple[Server, ...]:
    names = cluster_names(
        {
            (host.name, gpu.id, item.start): (host.name or "", f"gpu{gpu.index}" if not gpu.cores else "cpu",
                                             item.profile or "whole", f"at{item.start}")
            for host, gpu, item, _ in found
        }
    )  # fmt: skip
    made = []
    for host, gpu, item, kind in found:
        first = cores_before(host, gpu) + item.start
        made.append(Server(names[host.name, gpu.id, item.start], kind, host, gpu, item, port(host), first))
    return tuple(made)


def _job(
    parts: Mapping[tuple[str, str, str], Part],
    points: Mapping[PointKey, Point],
    gpu: HostGpu,
    item: PlannedSlice,
    tenant: Tenant,
) -> Job:
    key = (tenant.model, tenant.variant, tenant.stage)
    point = points[*key, point_type(gpu.type), item.profile, tenant.batch_size, tenant.processes]
    return Job(parts[key], round(tenant.share, 6), point)


def _readable(kind: Kind) -> list[str]:
    """A name a person understands: what runs, where, and how."""
    what = [job.part.label for job in kind.jobs]
    how = [text for job in kind.jobs for text in (f"b{job.batch_size}", f"p{job.processes}")]
    return [*what, kind.profile or "whole", kind.gpu_type, *how]


def _parts(
    used: tuple[tuple[PlanModel, Variant], ...],
    folders: Mapping[tuple[str, str], str],
    manifests: Manifests,
) -> tuple[dict[tuple[str, str, str], Part], tuple[Route, ...]]:
    labels = cluster_names(
        {(model.name,): (model.name,) for model, _ in used}
        | {
            (model.name, variant.name, stage.name): (model.name, stage.name)
            for model, variant in used
            if len(variant.stages) > 1
            for stage in variant.stages
        }
    )
    taken = {model.name for model, _ in used}
    parts: dict[tuple[str, str, str], Part] = {}
    routes = []
    for model, variant in used:
        manifest = manifests[model.name, variant.name]
        _check_manifest(model, variant, manifest)
        steps = []
        for stage, written in zip(variant.stages, manifest.stages, strict=True):
            cut = len(variant.stages) > 1
            key = (model.name, variant.name, stage.name)
            label = labels[key if cut else (model.name,)]
            part = Part(
                *key,
                name=_free(label, taken) if cut else model.name,
                label=label,
                file=f"models/{folders[model.name, variant.name]}/{written.file}",
                inputs=written.inputs,
                outputs=written.outputs,
            )
            parts[key] = part
            steps.append(part)
        known = {value.name: value for step in steps for value in (*step.inputs, *step.outputs)}
        # As `torchsplit serve` calls them: inputs as in the graph, outputs by their number.
        taken_in = [known[slot.name] for slot in manifest.inputs if slot.name in known]
        given = [known[slot.name] for slot in manifest.outputs if slot.name in known]
        outputs = tuple((f"output_{number}", value) for number, value in enumerate(given))
        routes.append(Route(model.name, labels[(model.name,)], tuple(steps), tuple(taken_in), outputs))
    return parts, tuple(routes)


def _free(label: str, taken: set[str]) -> str:
    """A name on the wire that is no model's own."""
    while label in taken:
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
                    f"the value {value.name} is {_shown(value)}, not a tensor whose first dimension is the batch, so "
                    "requests of several clients cannot go in one batch",
                    "Give the model such inputs and results; for a cut, forbid this variant and plan again.",
                )


def _shown(value: StageValue) -> str:
    return f"a {value.kind}" if value.shape is None else " × ".join(map(str, value.shape)) or "a scalar"
