"""A plan as systemd units, one folder a host: an instance of one template for each slice, by its UUID."""

from __future__ import annotations

import shlex
from dataclasses import replace

from torchsplit_core.deployment.addresses import check_addresses, host_folders
from torchsplit_core.deployment.custom_images import PORT, ImageContainer
from torchsplit_core.deployment.files import DeploymentFile
from torchsplit_core.deployment.formats.boot_unit import SETTINGS, UNIT, boot_files
from torchsplit_core.deployment.formats.slice_ids import slice_script
from torchsplit_core.deployment.hosts import Host
from torchsplit_core.deployment.routes import host_route_file
from torchsplit_core.deployment.vllm import TOKEN
from torchsplit_core.deployment.workload import ROUTER_PORT, SliceServer, Workload, placeholder_note
from torchsplit_core.values import PlanOutcome

INSTALLED = "/opt/torchsplit"
"""The folder of the image's context on a host, with a virtual environment `venv` in it."""

_SERVICE = f"""\
Type=exec
Environment=PATH={INSTALLED}/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
WorkingDirectory={INSTALLED}
ExecStart=/bin/bash {INSTALLED}/entrypoint.sh
# The server drains for up to 30 s; its workers are told by it, not by systemd.
KillMode=mixed
TimeoutStopSec=45
Restart=on-failure
RestartSec=2
DynamicUser=yes
NoNewPrivileges=yes
PrivateTmp=yes
ProtectSystem=strict
ProtectHome=yes
"""

_SERVER = f"""\
# A slice of plan {{plan}}: %i is the server. Not tested on hardware.
[Unit]
Description=TorchSplit server %i
Wants=network-online.target
After=network-online.target nvidia-persistenced.service {UNIT}
PartOf=torchsplit.target

[Service]
EnvironmentFile={SETTINGS}/servers/%i.env
# The slice's UUID, by find-slices.sh --units; a server on cores has none.
EnvironmentFile=-{SETTINGS}/slices/%i.env
{_SERVICE}"""

_CONTAINER = f"""\
# A container of plan {{plan}}: %i is its slice and model. Not tested on hardware.
[Unit]
Description=TorchSplit container %i
Wants=network-online.target
After=network-online.target docker.service nvidia-persistenced.service {UNIT}
Requires=docker.service
PartOf=torchsplit.target

[Service]
# The slice's UUID, by find-slices.sh --units; a container on cores has none.
EnvironmentFile=-{SETTINGS}/slices/%i.env
Type=exec
ExecStart=/bin/bash {SETTINGS}/containers/%i.sh
ExecStop=/usr/bin/env docker stop --time 45 torchsplit-%i
TimeoutStopSec=60
Restart=on-failure
RestartSec=2
"""

_RUN = """\
#!/usr/bin/env bash
# One container of plan {plan}. Not tested on hardware.
{note}set -euo pipefail
exec docker run --rm --name {name} --security-opt no-new-privileges --shm-size {memory}g {held} \\
  --publish {port}:{inside} {environment} \\
  {image}
"""

_ROUTER = f"""\
# The address of all models of plan {{plan}}. Not tested on hardware.
[Unit]
Description=TorchSplit: all models at port {ROUTER_PORT}
Wants=network-online.target
After=network-online.target
PartOf=torchsplit.target

[Service]
Environment=TORCHSPLIT_ROUTES={SETTINGS}/routes.json TORCHSPLIT_PORT={ROUTER_PORT}
{_SERVICE}"""


def systemd_files(
    plan: PlanOutcome, hosts: tuple[Host, ...], workload: Workload
) -> tuple[DeploymentFile, ...]:
    """`systemd/…`, or `systemd/HOST/…` for each named host.

    Raises InputFault if several hosts have no names by which they reach each other.
    """
    check_addresses(hosts, "systemd")
    folders = host_folders("systemd", hosts)
    files: list[DeploymentFile] = []
    for host in hosts:
        if workload.servers_and_containers_of(host):
            files += _host_files(folders[host.name], workload, host)
    return tuple(files)


def _host_files(folder: str, workload: Workload, host: Host) -> list[DeploymentFile]:
    servers, containers = workload.servers_of(host), workload.containers_of(host)
    script = slice_script(f"{folder}/find-slices.sh", workload, host)
    templates = {
        "torchsplit-server@.service": _SERVER if servers else None,
        "torchsplit-container@.service": _CONTAINER if containers else None,
        "torchsplit-router.service": _ROUTER if workload.routes else None,
    }
    units = [
        DeploymentFile(f"{folder}/units/{name}", text.format(plan=workload.plan))
        for name, text in templates.items()
        if text is not None
    ]
    units.append(DeploymentFile(f"{folder}/units/torchsplit.target", _target(workload, host)))
    for server in servers:
        if server.cores is not None:
            name = f"{folder}/units/torchsplit-server@{server.label}.service.d/cores.conf"
            units.append(DeploymentFile(name, f"[Service]\nCPUAffinity={server.cores}\n"))
    settings = [
        DeploymentFile(f"{folder}/servers/{server.label}.env", _environment(server)) for server in servers
    ]
    runs = [
        DeploymentFile(
            f"{folder}/containers/{container.label}.sh", _run_script(workload, container), executable=True
        )
        for container in containers
    ]
    routes = []
    if workload.routes:
        name = f"{folder}/routes.json"
        routes = [host_route_file(name, workload, host, lambda server: _url(server, host))]
    # Cut at boot only what has slices: cores need nothing, and without a script no unit reads UUIDs.
    gpus = replace(host, gpus=tuple(gpu for gpu in host.gpus if not gpu.is_cpu))
    boot = boot_files(workload.plan, gpus, f"{folder}/units/", f"{folder}/", finds=True) if script else ()
    return [
        *units,
        *boot,
        *settings,
        *runs,
        *routes,
        *([] if script is None else [script]),
    ]


def _run_script(workload: Workload, container: ImageContainer) -> str:
    if container.cores is not None:
        devices = f"--cpuset-cpus {container.cores}"
    else:
        devices = '--gpus "\\"device=${CUDA_VISIBLE_DEVICES:?run find-slices.sh --units first}\\""'
        if container.entry_point:
            devices += f" --entrypoint {container.entry_point[0]} --env {TOKEN}"
    if container.folder is not None:
        devices += f" --volume {shlex.quote(f'{container.folder}:{container.folder}:ro')}"
    return _RUN.format(
        plan=workload.plan,
        note=placeholder_note(workload) if container.image.placeholder else "",
        name=f"torchsplit-{container.label}",
        memory=container.shared_memory_gib,
        held=devices,
        port=container.port,
        inside=PORT,
        environment=" ".join(
            f"--env {shlex.quote(f'{key}={value}')}" for key, value in container.environment().items()
        ),
        image=shlex.join((container.image.image, *container.entry_point[1:], *container.command())),
    )


def _url(server: SliceServer, host: Host) -> str:
    return f"http://{'127.0.0.1' if server.host is host else server.host.name}:{server.port}"


def _target(workload: Workload, host: Host) -> str:
    names = [
        *(["router"] if workload.routes else []),
        *(f"server@{server.label}" for server in workload.servers_of(host)),
        *(f"container@{container.label}" for container in workload.containers_of(host)),
    ]
    wanted = "".join(f"Wants=torchsplit-{name}.service\n" for name in names)
    return (
        f"# All servers of plan {workload.plan} on this host.\n"
        f"[Unit]\nDescription=TorchSplit plan {workload.plan}\n{wanted}\n"
        "[Install]\nWantedBy=multi-user.target\n"
    )


def _environment(server: SliceServer) -> str:
    lines = [f"TORCHSPLIT_SERVER={server.kind.label}", f"TORCHSPLIT_PORT={server.port}"]
    if server.kind.needs_mps:
        lines.append("TORCHSPLIT_MPS=1")
    return "\n".join(lines) + "\n"
