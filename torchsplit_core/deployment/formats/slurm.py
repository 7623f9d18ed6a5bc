"""A plan for Slurm: what its nodes offer (gres.conf, lines of slurm.conf), and for each a job that serves its part."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from functools import partial

from torchsplit_core.deployment.addresses import check_addresses, check_nodes, host_folders
from torchsplit_core.deployment.files import DeploymentFile
from torchsplit_core.deployment.hosts import Host, HostGpu
from torchsplit_core.deployment.names import one_line
from torchsplit_core.deployment.routes import host_route_file
from torchsplit_core.deployment.servers import ROUTER_PORT, Server, Workload
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
#   sbatch --export=ALL,TORCHSPLIT_ROOT=/shared/torchsplit {file}
#
# TORCHSPLIT_ROOT: the folder image/ where the node sees it, with a virtual environment venv in it; beside the job's
# own routes.json. SIGTERM, a minute before the job's end or by scancel --full, drains.
set -euo pipefail

root=${{TORCHSPLIT_ROOT:?the folder image/ as the node sees it}}
here=${{TORCHSPLIT_JOB:-${{SLURM_SUBMIT_DIR:-$PWD}}}}
export PATH="$root/venv/bin:$PATH"

steps=()
drain() {{ kill -TERM "${{steps[@]}}" 2> /dev/null || true; }}
trap drain TERM INT

server() {{ # KIND, port, MPS, options of srun...
  local kind=$1 port=$2 mps=$3
  shift 3
  srun --exact --nodes=1 --ntasks=1 "$@" \\
    env TORCHSPLIT_SERVER="$kind" TORCHSPLIT_PORT="$port" TORCHSPLIT_MPS="$mps" bash "$root/entrypoint.sh" &
  steps+=("$!")
}}

{servers}

srun --exact --nodes=1 --ntasks=1 --cpus-per-task=1 --gres=none \\
  env TORCHSPLIT_ROUTES="$here/routes.json" TORCHSPLIT_PORT={port} bash "$root/entrypoint.sh" &
steps+=("$!")

# A step that ends ends the job, so that it is requeued whole; a signal ends the first wait, not the steps.
status=0
wait -n || status=$?
drain
wait || true
exit "$status"
"""


def slurm_files(plan: PlanOutcome, hosts: tuple[Host, ...], workload: Workload) -> tuple[DeploymentFile, ...]:
    """`slurm/gres.conf`, `slurm/nodes.conf` and `slurm/[HOST/]serve.sbatch` with its routes.

    Raises InputFault where a host has no name that a node can have.
    """
    check_nodes(hosts, "slurm")
    check_addresses(hosts, "slurm")
    head = f"# Plan {workload.plan}. Not tested on hardware.\n"
    files = []
    if any(not gpu.cores for host in hosts for gpu in host.gpus):
        files += [
            DeploymentFile("slurm/gres.conf", head + _gres(hosts)),
            DeploymentFile("slurm/nodes.conf", head + _nodes(hosts)),
        ]
    folders = host_folders("slurm", hosts)
    for host in hosts:
        if workload.of_host(host):
            folder = folders[host.name]
            files += [
                DeploymentFile(f"{folder}/serve.sbatch", _job(workload, host), executable=True),
                host_route_file(f"{folder}/routes.json", workload, host, partial(_url, host=host)),
            ]
    return tuple(files)


def _url(server: Server, host: Host) -> str:
    return f"http://{'127.0.0.1' if server.host is host else server.host.name}:{server.port}"


def slice_type(gpu: HostGpu, item: PlannedSlice) -> str:
    """The gres type: part of the name that slurmd finds by NVML (`a100_1g.10gb`), which is all that it compares."""
    return item.profile or re.split(r"[^a-z0-9]", gpu.type.lower())[0]


def _gres(hosts: tuple[Host, ...]) -> str:
    note = "# The node's own gres.conf: slurmd finds its MIG instances by NVML.\n"
    names = [host.name for host in hosts if any(not gpu.cores for gpu in host.gpus)]
    return note + "".join(
        "AutoDetect=nvml\n" if name is None else f"NodeName={name} AutoDetect=nvml\n" for name in names
    )


def _nodes(hosts: tuple[Host, ...]) -> str:
    lines = [
        "# For slurm.conf: add Gres= to these nodes' lines, and restart slurmctld and slurmd.",
        "GresTypes=gpu",
    ]
    for host in hosts:
        count = Counter(slice_type(gpu, item) for gpu in host.gpus if not gpu.cores for item in gpu.slices)
        if count:
            offered = ",".join(f"gpu:{name}:{number}" for name, number in sorted(count.items()))
            # A node without a name in the plan: the line is for whoever knows it.
            lines.append(f"{'# NodeName=…' if host.name is None else f'NodeName={host.name}'} Gres={offered}")
    return "\n".join(lines) + "\n"


def _job(workload: Workload, host: Host) -> str:
    servers = workload.of_host(host)
    count = Counter(slice_type(one.gpu, one.slice) for one in servers if not one.gpu.cores)
    options = "" if host.name is None else f"#SBATCH --nodelist={host.name}\n"
    if count:
        options += (
            f"#SBATCH --gres={','.join(f'gpu:{name}:{number}' for name, number in sorted(count.items()))}\n"
        )
    return _JOB.format(
        plan=workload.plan,
        tasks=len(servers) + 1,
        options=options,
        host=one_line(host.shown),
        file="serve.sbatch",
        port=ROUTER_PORT,
        servers="\n".join(map(_step, servers)),
    )


def _step(server: Server) -> str:
    if server.kind.cores is not None:
        held = f"--gres=none --cpus-per-task={server.kind.cores} --cpu-bind=cores"
    else:
        processes = sum(job.processes for job in server.kind.jobs)
        held = f"{shlex.quote(f'--gres=gpu:{slice_type(server.gpu, server.slice)}:1')} --cpus-per-task={processes}"
    return f"server {server.kind.label} {server.port} {int(server.kind.mps)} {held}"
