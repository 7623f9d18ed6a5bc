"""A plan as Docker compose files, one a host: a container for each slice, by UUID, and a router for all models."""

from __future__ import annotations

from collections.abc import Mapping

from torchsplit_core.deployment.addresses import check_addresses, host_folders
from torchsplit_core.deployment.custom_images import PORT, ImageContainer
from torchsplit_core.deployment.files import DeploymentFile
from torchsplit_core.deployment.formats.slice_ids import slice_script, slice_variables
from torchsplit_core.deployment.hosts import Host
from torchsplit_core.deployment.image import ROOT, image_name
from torchsplit_core.deployment.routes import host_route_file
from torchsplit_core.deployment.vllm import HEALTH_PATH, STARTUP_S, TOKEN
from torchsplit_core.deployment.workload import ROUTER_PORT, SliceServer, Workload, placeholder_note
from torchsplit_core.deployment.yaml_text import document
from torchsplit_core.values import PlanOutcome

ROUTER = "router"
"""The service with the address of all models. No server has this label: theirs name a GPU."""

_VLLM_READY = f"import urllib.request as r; r.urlopen('http://127.0.0.1:{PORT}{HEALTH_PATH}', timeout=4)"
_READY = f"import urllib.request as r; r.urlopen('http://127.0.0.1:{ROUTER_PORT}/v2/health/ready', timeout=4)"


def compose_files(
    plan: PlanOutcome, hosts: tuple[Host, ...], workload: Workload
) -> tuple[DeploymentFile, ...]:
    """`compose/compose.yaml`, or `compose/HOST/…` for each named host, each with its routes.

    Raises InputFault if several hosts have no names by which they reach each other.
    """
    check_addresses(hosts, "compose")
    folders = host_folders("compose", hosts)
    files: list[DeploymentFile] = []
    for host in hosts:
        folder = folders[host.name]
        if not workload.servers_and_containers_of(host):
            continue
        script = slice_script(f"{folder}/find-slices.sh", workload, host)
        up = "/".join([".."] * (folder.count("/") + 1))
        files += [
            DeploymentFile(f"{folder}/compose.yaml", _project(workload, host, f"{up}/{ROOT}")),
            *([_routes(f"{folder}/routes.json", workload, host)] if workload.routes else []),
            *([] if script is None else [script]),
        ]
    return tuple(files)


def _routes(name: str, workload: Workload, host: Host) -> DeploymentFile:
    def url(server: SliceServer) -> str:
        return (
            f"http://{server.label}:{ROUTER_PORT}"
            if server.host is host
            else f"http://{server.host.name}:{server.port}"
        )

    return host_route_file(name, workload, host, url)


def _project(workload: Workload, host: Host, image: str) -> str:
    services: dict[str, object] = {ROUTER: _router(workload, image)} if workload.routes else {}
    services |= {server.label: _server(workload, server) for server in workload.servers_of(host)}
    services |= {container.label: _container(container) for container in workload.containers_of(host)}
    up = f"build && docker compose up -d     all models at port {ROUTER_PORT}" if workload.routes else "up -d"
    head = (
        f"# Plan {workload.plan}: a container for each slice of one host. Not tested on hardware.\n"
        "#   bash find-slices.sh > .env     the UUIDs of the slices, once they are cut (not for cores)\n"
        f"#   docker compose {up}\n" + placeholder_note(workload)
    )
    return head + document({"name": f"torchsplit-{workload.plan}", "services": services})


def _common(workload: Workload) -> dict[str, object]:
    return {
        "image": image_name(workload),
        "init": True,
        "restart": "unless-stopped",
        # The server drains for up to 30 s.
        "stop_grace_period": "45s",
        "security_opt": ["no-new-privileges:true"],
        "cap_drop": ["ALL"],
        "healthcheck": {
            "test": ["CMD", "python", "-c", _READY],
            "interval": "10s",
            "timeout": "5s",
            "retries": 3,
            "start_period": "600s",
        },
    }


def _server(workload: Workload, server: SliceServer) -> Mapping[str, object]:
    environment = {"TORCHSPLIT_SERVER": server.kind.label, "TORCHSPLIT_PORT": str(ROUTER_PORT)}
    if server.kind.needs_mps:
        environment["TORCHSPLIT_MPS"] = "1"
    service = _common(workload) | {
        "environment": environment,
        "ports": [f"{server.port}:{ROUTER_PORT}"],
        "shm_size": "1gb",
    }
    return service | _devices(server)


def _devices(server: SliceServer | ImageContainer) -> dict[str, object]:
    """Its cores, or its slice."""
    if server.cores is not None:
        return {"cpuset": server.cores}
    uuids = [f"${{{name}:?run find-slices.sh first}}" for name in slice_variables(server)]
    device = {"driver": "nvidia", "device_ids": uuids, "capabilities": ["gpu"]}
    return {"deploy": {"resources": {"reservations": {"devices": [device]}}}}


def _container(container: ImageContainer) -> Mapping[str, object]:
    """A custom image: only its author knows its readiness check and privileges."""
    service: dict[str, object] = {"image": container.image.image}
    if container.entry_point:
        service["entrypoint"] = list(container.entry_point)
    if command := container.command():
        service["command"] = list(map(_literal, command))
    if container.is_vllm:
        service["healthcheck"] = {
            "test": ["CMD", "python3", "-c", _VLLM_READY],
            "interval": "10s", "timeout": "5s", "retries": 3, "start_period": f"{STARTUP_S}s",
        }  # fmt: skip
    if container.folder is not None:
        folder = _literal(container.folder)
        service["volumes"] = [{"type": "bind", "source": folder, "target": folder, "read_only": True}]
    environment: dict[str, str | None] = {
        key: _literal(value) for key, value in container.environment().items()
    }
    if container.is_vllm:
        environment[TOKEN] = None  # the reader's, where it is set
    return service | {
        "restart": "unless-stopped",
        "stop_grace_period": "45s",
        "security_opt": ["no-new-privileges:true"],
        "environment": environment,
        "ports": [f"{container.port}:{PORT}"],
        "shm_size": f"{container.shared_memory_gib}gb",
        **_devices(container),
    }


def _literal(text: str) -> str:
    """Escape dollars, which Compose would take for variables."""
    return text.replace("$", "$$")


def _router(workload: Workload, image: str) -> Mapping[str, object]:
    return _common(workload) | {
        "build": {"context": image},
        "environment": {"TORCHSPLIT_ROUTES": "/srv/routes.json", "TORCHSPLIT_PORT": str(ROUTER_PORT)},
        "ports": [f"{ROUTER_PORT}:{ROUTER_PORT}"],
        "volumes": ["./routes.json:/srv/routes.json:ro"],
    }
