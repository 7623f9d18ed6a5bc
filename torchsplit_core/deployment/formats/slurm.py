"""A plan for Slurm: the nodes' resources (gres.conf, lines of slurm.conf), and a job for each that serves its part."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from functools import partial

from torchsplit_core.deployment.addresses import check_addresses, check_nodes, host_folders
from torchsplit_core.deployment.custom_images import ImageContainer
from torchsplit_core.deployment.files import DeploymentFile
from torchsplit_core.deployment.hosts import Host, HostGpu
from torchsplit_core.deployment.routes import host_route_file
from torchsplit_core.deployment.safe_text import one_line
from torchsplit_core.deployment.workload import ROUTER_PORT, SliceServer, Workload, placeholder_note
from torchsplit_core.hardware import profile_cores
from torchsplit_core.values import PlannedSlice, PlanOutcome

_JOB = """\
#!/usr/bin/env bash
#SBATCH --job-name=torchsplit-{plan}
#SBATCH --nodes=1
#SBATCH --ntasks={tasks}
#SBATCH --exclusive
#SBATCH --mem=0
{options}#SBATCH --signal=B:TERM@60
#SBATCH --requeue
# The servers of plan {plan} on {host}: a step for each slice. Not tested on hardware.
#
{note}# SIGTERM, a minute before the job's end or by scancel --full, drains.
set -euo pipefail

{head}steps=()
drain() {{ kill -TERM "${{steps[@]}}" 2> /dev/null || true; }}
trap drain TERM INT

{servers}

# A step that ends ends the job, so that it is requeued whole; a signal ends the first wait, not the steps.
status=0
wait -n || status=$?
drain
wait || true
exit "$status"
"""

_USAGE = """\
#   sbatch --export=ALL,TORCHSPLIT_ROOT=/shared/torchsplit {file}
#
# TORCHSPLIT_ROOT: the folder image/ where the node sees it, with a virtual environment venv in it; beside the job's
# own routes.json.
"""

_PREAMBLE = """\
root=${TORCHSPLIT_ROOT:?the folder image/ as the node sees it}
here=${TORCHSPLIT_JOB:-${SLURM_SUBMIT_DIR:-$PWD}}
export PATH="$root/venv/bin:$PATH"

"""

_SERVER = """\
server() { # KIND, port, MPS, options of srun...
  local kind=$1 port=$2 mps=$3
  shift 3
  srun --exact --nodes=1 --ntasks=1 "$@" \\
    env TORCHSPLIT_SERVER="$kind" TORCHSPLIT_PORT="$port" TORCHSPLIT_MPS="$mps" bash "$root/entrypoint.sh" &
  steps+=("$!")
}
"""

_ROUTER = """\
# Beside the others: where slices are cores they may have all of the node's.
srun --overlap --nodes=1 --ntasks=1 --cpu-bind=none --gres=none \\
  env TORCHSPLIT_ROUTES="$here/routes.json" TORCHSPLIT_PORT={port} bash "$root/entrypoint.sh" &
steps+=("$!")
"""

_CONTAINER = """\
srun --exact --nodes=1 --ntasks=1 {held} \\
  env {environment} \\
  apptainer {verb} --nv {bound}{image} &
steps+=("$!")
"""


def slurm_files(plan: PlanOutcome, hosts: tuple[Host, ...], workload: Workload) -> tuple[DeploymentFile, ...]:
    """`slurm/gres.conf`, `slurm/nodes.conf` and `slurm/[HOST/]serve.sbatch` with its routes.

    Raises InputFault if a host's name is no valid node name.
    """
    check_nodes(hosts, "slurm")
    check_addresses(hosts, "slurm")
    head = f"# Plan {workload.plan}. Not tested on hardware.\n"
    files = []
    if any(not gpu.is_cpu for host in hosts for gpu in host.gpus):
        files += [
            DeploymentFile("slurm/gres.conf", head + _gres(hosts)),
            DeploymentFile("slurm/nodes.conf", head + _nodes(hosts)),
        ]
    folders = host_folders("slurm", hosts)
    for host in hosts:
        if workload.servers_of(host) or _containers(workload, host):
            folder = folders[host.name]
            files.append(DeploymentFile(f"{folder}/serve.sbatch", _job(workload, host), executable=True))
            if workload.routes:
                url = partial(_url, host=host)
                files.append(host_route_file(f"{folder}/routes.json", workload, host, url))
    return tuple(files)


def _url(server: SliceServer, host: Host) -> str:
    return f"http://{'127.0.0.1' if server.host is host else server.host.name}:{server.port}"


def slice_type(gpu: HostGpu, item: PlannedSlice) -> str:
    """The gres type: the compared part of the name that slurmd finds by NVML (`a100_1g.10gb`)."""
    return item.profile or re.split(r"[^a-z0-9]", gpu.type.lower())[0]


def _gres(hosts: tuple[Host, ...]) -> str:
    note = "# The node's own gres.conf: slurmd finds its MIG instances by NVML.\n"
    names = [host.name for host in hosts if any(not gpu.is_cpu for gpu in host.gpus)]
    return note + "".join(
        "AutoDetect=nvml\n" if name is None else f"NodeName={name} AutoDetect=nvml\n" for name in names
    )


def _nodes(hosts: tuple[Host, ...]) -> str:
    lines = [
        "# For slurm.conf: add Gres= to these nodes' lines, and restart slurmctld and slurmd.",
        "GresTypes=gpu",
    ]
    for host in hosts:
        count = Counter(slice_type(gpu, item) for gpu in host.gpus if not gpu.is_cpu for item in gpu.slices)
        if count:
            offered = ",".join(f"gpu:{name}:{number}" for name, number in sorted(count.items()))
            # A node without a name in the plan: the user fills in the line.
            lines.append(f"{'# NodeName=…' if host.name is None else f'NodeName={host.name}'} Gres={offered}")
    return "\n".join(lines) + "\n"


def _containers(workload: Workload, host: Host) -> tuple[ImageContainer, ...]:
    return tuple(container for container in workload.containers_of(host) if container.has_whole_slice)


def _job(workload: Workload, host: Host) -> str:
    servers, containers = workload.servers_of(host), _containers(workload, host)
    used = [(server.gpu, server.slice) for server in servers] + [
        (gpu, server.slice) for server in containers for gpu in server.gpus
    ]
    count = Counter(slice_type(gpu, item) for gpu, item in used if not gpu.is_cpu)
    options = "" if host.name is None else f"#SBATCH --nodelist={host.name}\n"
    if count:
        options += (
            f"#SBATCH --gres={','.join(f'gpu:{name}:{number}' for name, number in sorted(count.items()))}\n"
        )
    file = "serve.sbatch"
    parts = [
        *([_SERVER, "\n".join(map(_step, servers)) + "\n"] if servers else []),
        *map(_container, containers),
        *([_ROUTER.format(port=ROUTER_PORT)] if workload.routes else []),
    ]
    return _JOB.format(
        plan=workload.plan,
        # Without the router, which overlaps: a node with as many cores as slices has no more tasks.
        tasks=len(servers) + len(containers),
        options=options,
        host=one_line(host.display_name),
        note=(_USAGE.format(file=file) if workload.routes else f"#   sbatch {file}\n#\n")
        + placeholder_note(workload),
        head=_PREAMBLE if workload.routes else "",
        servers="\n".join(parts).rstrip("\n"),
    )


def _container(container: ImageContainer) -> str:
    """Apptainer uses the host's network, so each listens at its own port."""
    environment = container.environment(container.port).items()
    return _CONTAINER.format(
        held=_srun_options(container.gpu, container.slice, container.busy_cores, len(container.gpus)),
        environment=" ".join(shlex.quote(f"{key}={value}") for key, value in environment),
        bound=""
        if container.folder is None
        else f"--bind {shlex.quote(f'{container.folder}:{container.folder}:ro')} ",
        verb="exec" if container.entry_point else "run",
        image=shlex.join(
            (
                f"docker://{container.image.image}",
                *container.entry_point,
                *container.command(container.port),
            )
        ),
    )


def _srun_options(gpu: HostGpu, item: PlannedSlice, processes: int, gpus: int = 1) -> str:
    cores = profile_cores(item.profile)
    if cores is not None:
        return f"--gres=none --cpus-per-task={cores} --cpu-bind=cores"
    return f"{shlex.quote(f'--gres=gpu:{slice_type(gpu, item)}:{gpus}')} --cpus-per-task={processes}"


def _step(server: SliceServer) -> str:
    options = _srun_options(
        server.gpu, server.slice, sum(instance.processes for instance in server.kind.instances)
    )
    return f"server {server.kind.label} {server.port} {int(server.kind.needs_mps)} {options}"
