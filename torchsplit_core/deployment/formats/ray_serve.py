"""A plan as a Ray Serve application: its configuration, its input, and a script that starts Ray on each host.

Ray assigns GPUs by number and knows no profiles. So each slice gets a Ray node of its own that sees only that slice and
offers a resource of its kind, which replicas request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from torchsplit_core.deployment.addresses import check_addresses, host_folders
from torchsplit_core.deployment.files import DeploymentFile
from torchsplit_core.deployment.formats.ray_llm import engine_application, engine_nodes
from torchsplit_core.deployment.formats.slice_ids import slice_script, slice_variable
from torchsplit_core.deployment.hosts import Host
from torchsplit_core.deployment.image import ROOT
from torchsplit_core.deployment.routes import datatype, sizes
from torchsplit_core.deployment.workload import (
    ROUTER_PORT,
    PartInstance,
    Route,
    ServerKind,
    SliceServer,
    Workload,
    placeholder_note,
)
from torchsplit_core.deployment.yaml_text import document
from torchsplit_core.values import PlanOutcome, StageValue

APPLICATION = "ray-serve/application.json"
"""Its input, in the image's context, beside the models' parts."""
MODULE = "ray_application"
"""The module that Ray imports there."""
_APPLICATION_MODULE = '''\
"""The application that serve.yaml names, as the product has it."""

from torchsplit_core.serving.ray_app import build

__all__ = ["build"]
'''
QUEUE = 1000
"""Most requests in and before a replica."""

_START = """\
#!/usr/bin/env bash
# Starts Ray for plan {plan} on {host}: a Ray node for each slice. Not tested on hardware.
#
#   bash find-slices.sh > slices.env       once the GPUs are cut (not for cores)
#   RAY_ADDRESS=HEAD:6379 bash {file}      shows the commands; --apply runs them
#
# Run it in the folder {root} as the node has it (in the image: /srv), with PYTHONPATH set to it. Without RAY_ADDRESS
# this host is the head. Then, once: serve deploy serve.yaml
set -euo pipefail
here="$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)"

apply=false
if (( $# == 1 )) && [[ $1 == --apply ]]; then
  apply=true
elif (( $# > 0 )); then
  printf 'unknown arguments: %s (only --apply is known)\\n' "$*" >&2
  exit 2
fi
if [[ -f $here/slices.env ]]; then source "$here/slices.env"; fi

change() {{ # runs a command with --apply, shows it without
  printf '%q ' "$@"; printf '\\n'
  if [[ $apply == true ]]; then "$@"; fi
}}

if [[ -z ${{RAY_ADDRESS:-}} ]]; then
  change env CUDA_VISIBLE_DEVICES= ray start --head --port=6379 --num-gpus=0
  RAY_ADDRESS=127.0.0.1:6379
fi
node() {{ # KIND, GPUs, cores, environment, and what holds it to cores...
  local kind=$1 gpus=$2 cores=$3
  shift 3
  change env "$@" ray start --address="$RAY_ADDRESS" --num-gpus="$gpus" --num-cpus="$cores" \\
    --resources="{{\\"$kind\\": $(( gpus > 1 ? gpus : 1 ))}}"
}}

{nodes}
"""


def ray_serve_files(
    plan: PlanOutcome, hosts: tuple[Host, ...], workload: Workload
) -> tuple[DeploymentFile, ...]:
    """`ray-serve/serve.yaml`, the application's input, and `ray-serve/[HOST/]start.sh`.

    Raises InputFault if several hosts have no names by which they reach each other.
    """
    check_addresses(hosts, "ray-serve")
    folders = host_folders("ray-serve", hosts)
    scripts: list[DeploymentFile] = []
    for host in hosts:
        if not workload.servers_of(host) and not any(engine_nodes(workload, host)):
            continue
        folder = folders[host.name]
        scripts.append(DeploymentFile(f"{folder}/start.sh", _start(workload, host), executable=True))
        script = slice_script(f"{folder}/find-slices.sh", workload, host)
        scripts += [] if script is None else [script]
    config = DeploymentFile("ray-serve/serve.yaml", _config(workload))
    if not workload.kinds:
        return (config, *scripts)
    return (
        config,
        DeploymentFile(f"{ROOT}/{MODULE}.py", _APPLICATION_MODULE),
        DeploymentFile(f"{ROOT}/{APPLICATION}", json.dumps(_application(workload), indent=1) + "\n"),
        *scripts,
    )


def _name(kind: ServerKind, number: int) -> str:
    """The name of the deployment of one tenant of a server kind."""
    return kind.label if len(kind.instances) == 1 else f"{kind.label}-{number}"


def _config(workload: Workload) -> str:
    deployments: list[Mapping[str, object]] = [
        _deployment(workload, kind, number, instance)
        for kind in workload.kinds
        for number, instance in enumerate(kind.instances)
    ]
    front: dict[str, object] = {
        "name": "front",
        "num_replicas": 2,
        "max_ongoing_requests": 10 * QUEUE,
        "ray_actor_options": {"num_cpus": 0},
    }
    application = {
        "name": f"torchsplit-{workload.plan}",
        "route_prefix": "/",
        "import_path": f"{MODULE}:build",
        "args": {"plan": APPLICATION},
        "deployments": [*deployments, front],
    }
    engines = engine_application(workload, alone=not deployments)
    config = {
        "proxy_location": "EveryNode",
        "http_options": {"host": "0.0.0.0", "port": ROUTER_PORT},
        "applications": [*([application] if deployments else ()), *([engines] if engines else ())],
    }
    head = (
        f"# Plan {workload.plan} as a Ray Serve application. Not tested on hardware.\n"
        "# Each replica asks for the resource of its kind of slice, which only the Ray nodes of start.sh offer.\n"
    )
    return head + placeholder_note(workload, llms_alone=True) + document(config)


def _deployment(
    workload: Workload, kind: ServerKind, number: int, instance: PartInstance
) -> Mapping[str, object]:
    """A replica for each process; those of a slice, and tenants that share one, divide it."""
    slices = sum(server.kind is kind for server in workload.servers)
    # Rounded down to Ray's resolution of a resource, so that all fit their slice.
    fraction = int(10_000 * instance.share / instance.processes) / 10_000
    options: dict[str, object] = {"num_cpus": 0, "resources": {kind.label: fraction}}
    if kind.cores is None:
        options["num_gpus"] = fraction
    return {
        "name": _name(kind, number),
        "num_replicas": slices * instance.processes,
        "max_ongoing_requests": 2 * instance.batch_size,
        "max_queued_requests": QUEUE,
        "graceful_shutdown_timeout_s": 30.0,
        "health_check_period_s": 10.0,
        "ray_actor_options": options,
    }


def _application(workload: Workload) -> dict[str, object]:
    parts = [
        {
            "deployment": _name(kind, number),
            "file": instance.part.file,
            "inputs": [value.name for value in instance.part.inputs],
            "outputs": [value.name for value in instance.part.outputs],
            "max_batch": instance.batch_size,
            "wait_s": workload.waits_ms.get(instance.part.model, 0.0) / 1000,
            "device": "cpu" if kind.cores is not None else "cuda",
        }
        for kind in workload.kinds
        for number, instance in enumerate(kind.instances)
    ]
    return {"parts": parts, "models": [_model(workload, route) for route in workload.routes]}


def _model(workload: Workload, route: Route) -> dict[str, object]:
    steps, largest = [], []
    for step in route.steps:
        weights: dict[str, float] = {}
        for server in workload.servers_for(step):
            for number, instance in enumerate(server.kind.instances):
                if instance.part == step:
                    name = _name(server.kind, number)
                    weights[name] = weights.get(name, 0.0) + instance.tenant.throughput_rps
                    largest.append(instance.batch_size)
        steps.append(
            {
                "deployments": list(weights),
                "weights": list(weights.values()),
                "inputs": [value.name for value in step.inputs],
            }
        )
    return {
        "name": route.model,
        "inputs": list(map(_tensor, route.inputs)),
        "outputs": [{**_tensor(value), "name": name, "value": value.name} for name, value in route.outputs],
        "max_batch": min(largest),
        "steps": steps,
    }


def _tensor(value: StageValue) -> dict[str, object]:
    return {"name": value.name, "datatype": datatype(value), "shape": list(sizes(value))}


def _start(workload: Workload, host: Host) -> str:
    return _START.format(
        plan=workload.plan,
        host=json.dumps(host.display_name),
        file="start.sh",
        root=ROOT,
        nodes="\n".join((*map(_node, workload.servers_of(host)), *engine_nodes(workload, host))),
    )


def _node(server: SliceServer) -> str:
    if server.kind.cores is not None:
        return (
            f"node {server.kind.label} 0 {server.kind.cores} CUDA_VISIBLE_DEVICES= taskset -c {server.cores}"
        )
    name = slice_variable(server)
    uuid = f'CUDA_VISIBLE_DEVICES="${{{name}:?run find-slices.sh > slices.env first}}"'
    processes = sum(instance.processes for instance in server.kind.instances)
    return f"node {server.kind.label} 1 {processes} {uuid}"
