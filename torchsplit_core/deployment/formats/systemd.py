"""A plan as systemd units, one folder a host: an instance of one template for each slice, by its UUID."""

from __future__ import annotations

from torchsplit_core.deployment.addresses import check_addresses, host_folders
from torchsplit_core.deployment.files import DeploymentFile
from torchsplit_core.deployment.formats.slice_ids import slice_script
from torchsplit_core.deployment.hosts import Host
from torchsplit_core.deployment.routes import host_route_file
from torchsplit_core.deployment.servers import ROUTER_PORT, Server, Workload
from torchsplit_core.values import PlanOutcome

INSTALLED = "/opt/torchsplit"
"""Where the image's context lies on a host, with a virtual environment `venv` in it."""
SETTINGS = "/etc/torchsplit"

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
After=network-online.target nvidia-persistenced.service
PartOf=torchsplit.target

[Service]
EnvironmentFile={SETTINGS}/servers/%i.env
# The slice's UUID, by find-slices.sh --units; a server on cores has none.
EnvironmentFile=-{SETTINGS}/slices/%i.env
{_SERVICE}"""

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
    """`systemd/…`, or `systemd/HOST/…` for each host that has a name.

    Raises InputFault where hosts of several have no names by which they reach each other.
    """
    check_addresses(hosts, "systemd")
    folders = host_folders("systemd", hosts)
    files: list[DeploymentFile] = []
    for host in hosts:
        servers = workload.of_host(host)
        if servers:
            files += _host_files(folders[host.name], workload, host, servers)
    return tuple(files)


def _host_files(
    folder: str, workload: Workload, host: Host, servers: tuple[Server, ...]
) -> list[DeploymentFile]:
    script = slice_script(f"{folder}/find-slices.sh", workload, host)
    units = [
        DeploymentFile(f"{folder}/units/torchsplit-server@.service", _SERVER.format(plan=workload.plan)),
        DeploymentFile(f"{folder}/units/torchsplit-router.service", _ROUTER.format(plan=workload.plan)),
        DeploymentFile(f"{folder}/units/torchsplit.target", _target(workload, servers)),
    ]
    for server in servers:
        if server.cores is not None:
            name = f"{folder}/units/torchsplit-server@{server.label}.service.d/cores.conf"
            units.append(DeploymentFile(name, f"[Service]\nCPUAffinity={server.cores}\n"))
    settings = [
        DeploymentFile(f"{folder}/servers/{server.label}.env", _environment(server)) for server in servers
    ]
    return [
        *units,
        *settings,
        host_route_file(f"{folder}/routes.json", workload, host, lambda server: _url(server, host)),
        *([] if script is None else [script]),
    ]


def _url(server: Server, host: Host) -> str:
    return f"http://{'127.0.0.1' if server.host is host else server.host.name}:{server.port}"


def _target(workload: Workload, servers: tuple[Server, ...]) -> str:
    wanted = "".join(f"Wants=torchsplit-server@{server.label}.service\n" for server in servers)
    return (
        f"# All servers of plan {workload.plan} on this host.\n"
        f"[Unit]\nDescription=TorchSplit plan {workload.plan}\nWants=torchsplit-router.service\n{wanted}\n"
        "[Install]\nWantedBy=multi-user.target\n"
    )


def _environment(server: Server) -> str:
    lines = [f"TORCHSPLIT_SERVER={server.kind.label}", f"TORCHSPLIT_PORT={server.port}"]
    if server.kind.mps:
        lines.append("TORCHSPLIT_MPS=1")
    return "\n".join(lines) + "\n"
