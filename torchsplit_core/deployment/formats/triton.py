"""A plan as Triton model repositories: one for each server kind, and one for cut models.

A Triton server sees one MIG instance, and an ensemble runs inside one server. So every slice has a server, with the
parts of its tenants, and another server without a GPU joins the stages of a cut model: its ensemble passes their values
on, and each of its steps calls the servers that have the stage.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from torchsplit_core.deployment.addresses import check_addresses, host_folders
from torchsplit_core.deployment.files import DeploymentFile
from torchsplit_core.deployment.formats.slice_ids import slice_script, slice_variable
from torchsplit_core.deployment.hosts import Host
from torchsplit_core.deployment.image import image_name
from torchsplit_core.deployment.routes import datatype, planned_rps, sizes
from torchsplit_core.deployment.workload import (
    ROUTER_PORT,
    PartInstance,
    Route,
    ServedPart,
    ServerKind,
    SliceServer,
    Workload,
)
from torchsplit_core.values import InputFault, PlanOutcome, StageValue

ENTRY = "entry"
"""The repository of cut models."""
QUEUE = 1000
"""Most waiting requests of a model, as in `torchsplit serve`."""
CONCURRENT_REQUESTS = 8
"""Concurrent requests of one step of an ensemble, for each server of its stage."""

_PART_MODEL = '''\
"""A part of a model, written by TorchSplit for Triton's Python backend. Not tested on hardware."""

import json

import torch
import triton_python_backend_utils as pb_utils
from torch.utils.dlpack import from_dlpack, to_dlpack


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        gpu = args["model_instance_kind"] == "GPU"
        self.device = torch.device(f"cuda:{args['model_instance_device_id']}" if gpu else "cpu")
        self.inputs = [entry["name"] for entry in config["input"]]
        self.outputs = [entry["name"] for entry in config["output"]]
        program = torch.export.load(config["parameters"]["part"]["string_value"])
        if gpu:
            from torch.export.passes import move_to_device_pass

            program = move_to_device_pass(program, self.device)
        self.module = program.module(check_guards=False)

    def execute(self, requests):
        """One run for all requests that Triton has put in a batch; where it fails each by itself."""
        try:
            return self.run(requests)
        except Exception as error:
            if len(requests) > 1:
                # Only the request at fault fails.
                return [self.execute([one])[0] for one in requests]
            said = pb_utils.TritonError(f"{type(error).__name__}: {str(error)[:500]}")
            return [pb_utils.InferenceResponse(output_tensors=[], error=said)]

    def run(self, requests):
        taken = [
            [from_dlpack(pb_utils.get_input_tensor_by_name(one, name).to_dlpack()) for name in self.inputs]
            for one in requests
        ]
        rows = [tensors[0].shape[0] for tensors in taken]
        joined = [torch.cat(columns).to(self.device) for columns in zip(*taken)]
        with torch.inference_mode():
            given = self.module(*joined)
        split = [tensor.contiguous().cpu().split(rows) for tensor in given]
        return [
            pb_utils.InferenceResponse(
                [
                    pb_utils.Tensor.from_dlpack(name, to_dlpack(part.contiguous()))
                    for name, part in zip(self.outputs, parts)
                ]
            )
            for parts in zip(*split)
        ]
'''

_REMOTE_MODEL = '''\
"""A stage that other Triton servers have, written by TorchSplit for Triton's Python backend. Not tested on hardware."""

import asyncio
import json

import numpy as np
import triton_python_backend_utils as pb_utils

from torchsplit_core.serving.router.load_balancer import LoadBalancer
from torchsplit_core.serving.protocol.client import RawTensor, decode_outputs, encode_request
from torchsplit_core.serving.protocol.http_body import content_headers
from torchsplit_core.serving.protocol.tensors import LENGTH_HEADER
from torchsplit_core.values.serving.routes import RouteServer
from torchsplit_core.values.serving.datatypes import OF_NUMPY


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config["parameters"].items()}
        self.model, self.timeout_s = args["model_name"], float(parameters["timeout_s"])
        self.datatypes = json.loads(parameters["datatypes"])
        self.inputs = [entry["name"] for entry in config["input"]]
        self.outputs = [entry["name"] for entry in config["output"]]
        servers = json.loads(parameters["servers"])
        self.servers = LoadBalancer(tuple(RouteServer(url, weight) for url, weight in servers))
        self.loop = asyncio.new_event_loop()

    def execute(self, requests):
        return self.loop.run_until_complete(self.answers(requests))

    async def answers(self, requests):
        return await asyncio.gather(*map(self.answer, requests))

    async def answer(self, request):
        try:
            async with asyncio.timeout(self.timeout_s):
                outputs = await self.ask(request)
        except (OSError, ValueError) as error:
            failure = pb_utils.TritonError(f"{self.model}: {str(error) or 'no answer in time'}")
            return pb_utils.InferenceResponse(output_tensors=[], error=failure)
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, outputs[name]) for name in self.outputs])

    async def ask(self, request):
        inputs = []
        for name in self.inputs:
            array = pb_utils.get_input_tensor_by_name(request, name).as_numpy()
            inputs.append(RawTensor(name, self.datatypes[name], array.shape, array.tobytes()))
        body, length = encode_request(inputs)
        response = await self.servers.send(self.model, content_headers(length), body)
        if response.status != 200:
            raise ValueError(f"{response.status} {response.body[:500].decode(errors='replace')}")
        return {
            output.name: np.frombuffer(output.data, OF_NUMPY[output.datatype]).reshape(output.shape)
            for output in decode_outputs(response.body, response.headers.get(LENGTH_HEADER))
        }
'''

_START = """\
#!/usr/bin/env bash
# Starts the Triton servers of plan {plan} on {host}, a container for each slice. Not tested on hardware.
#
#   bash find-slices.sh > slices.env    once the GPUs are cut
#   bash {file}                         shows the commands; --apply runs them
set -euo pipefail
here="$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)"
top="$(cd "$here/{up}" && pwd)"

apply=false
if (( $# == 1 )) && [[ $1 == --apply ]]; then
  apply=true
elif (( $# > 0 )); then
  printf 'unknown arguments: %s (only --apply is known)\\n' "$*" >&2
  exit 2
fi
if [[ -f $here/slices.env ]]; then source "$here/slices.env"; fi

start() {{ # name, port, repository, options of docker...
  local name=$1 port=$2 repository=$3
  shift 3
  local -a command=(docker run --detach --init --restart unless-stopped --stop-timeout 45 --shm-size 1g
    --name "$name" --publish "$port:8000" "$@"
    --volume "$top/triton/$repository:/repository:ro" --volume "$top/image/models:/srv/models:ro"
    {image}-triton tritonserver --model-repository=/repository --exit-timeout-secs=30)
  printf '%q ' "${{command[@]}}"; printf '\\n'
  if [[ $apply == true ]]; then "${{command[@]}}"; fi
}}

{commands}
"""


def triton_files(
    plan: PlanOutcome, hosts: tuple[Host, ...], workload: Workload
) -> tuple[DeploymentFile, ...]:
    """`triton/KIND/…` for each server kind, `triton/entry/…` for cut models, and a script a host that starts them.

    Raises InputFault if several hosts have no names by which they reach each other.
    """
    check_addresses(hosts, "triton")
    files: list[DeploymentFile] = []
    for kind in workload.kinds:
        root = f"triton/{kind.label}"
        for part, instances in _by_part(kind).items():
            files += _files(root, part.label, _part_config(kind, part, instances), _PART_MODEL)
    cut = tuple(route for route in workload.routes if len(route.steps) > 1)
    for route in cut:
        for step in route.steps:
            files += _files(f"triton/{ENTRY}", step.label, _remote_config(workload, step), _REMOTE_MODEL)
        files += _files(f"triton/{ENTRY}", route.label, _ensemble_config(workload, route), None)
    return (*files, *_scripts(workload, hosts, bool(cut)))


def _by_part(kind: ServerKind) -> dict[ServedPart, list[PartInstance]]:
    by_part: dict[ServedPart, list[PartInstance]] = {}
    for instance in kind.instances:
        by_part.setdefault(instance.part, []).append(instance)
    return by_part


def _files(root: str, label: str, config: Mapping[str, object], model: str | None) -> list[DeploymentFile]:
    head = "# Written by TorchSplit. Not tested on hardware.\n"
    files = [DeploymentFile(f"{root}/{label}/config.pbtxt", head + protobuf_text(config))]
    # An ensemble is only a configuration, but Triton requires a version folder.
    files.append(
        DeploymentFile(f"{root}/{label}/1/{'model.py' if model else 'README'}", model or "# An ensemble.\n")
    )
    return files


def _part_config(kind: ServerKind, part: ServedPart, instances: list[PartInstance]) -> dict[str, object]:
    return {
        "name": part.label,
        "backend": "python",
        "max_batch_size": max(instance.batch_size for instance in instances),
        "input": list(map(_tensor, part.inputs)),
        "output": list(map(_tensor, part.outputs)),
        "instance_group": [
            {
                "count": sum(instance.processes for instance in instances),
                "kind": EnumName("KIND_CPU" if kind.cores is not None else "KIND_GPU"),
            }
        ],
        "dynamic_batching": {"default_queue_policy": {"max_queue_size": QUEUE}},
        "parameters": [_parameter("part", f"/srv/{part.file}")],
    }


def _remote_config(workload: Workload, part: ServedPart) -> dict[str, object]:
    servers = workload.servers_for(part)
    urls = [
        (
            f"http://{server.host.name or 'host.docker.internal'}:{server.port}",
            planned_rps(server, part),
        )
        for server in servers
    ]
    return {
        "name": part.label,
        "backend": "python",
        "max_batch_size": _max_rows(part, workload),
        "input": list(map(_tensor, part.inputs)),
        "output": list(map(_tensor, part.outputs)),
        "instance_group": [
            {"count": CONCURRENT_REQUESTS * min(len(servers), 8), "kind": EnumName("KIND_CPU")}
        ],
        "parameters": [
            _parameter("servers", json.dumps(urls)),
            _parameter("datatypes", json.dumps({value.name: datatype(value) for value in part.inputs})),
            _parameter("timeout_s", "30"),
        ],
    }


def _ensemble_config(workload: Workload, route: Route) -> dict[str, object]:
    names = {value.name: name for name, value in route.outputs}
    if len(names) < len(route.outputs) or any(value.name in names for value in route.inputs):
        given = ", ".join(value.name for _, value in route.outputs)
        raise InputFault(
            f"models: {route.model}",
            f"its cut gives a value twice or one that it was given ({given}), which a Triton ensemble cannot",
            "Forbid the cut variants and plan again, or choose another --format.",
        )
    return {
        "name": route.label,
        "platform": "ensemble",
        "max_batch_size": min(_max_rows(part, workload) for part in route.steps),
        "input": list(map(_tensor, route.inputs)),
        "output": [{**_tensor(value), "name": name} for name, value in route.outputs],
        "ensemble_scheduling": {
            "step": [
                {
                    "model_name": part.label,
                    "model_version": -1,
                    "input_map": [_tensor_map(value, names) for value in part.inputs],
                    "output_map": [_tensor_map(value, names) for value in part.outputs],
                }
                for part in route.steps
            ]
        },
    }


def _tensor_map(value: StageValue, names: Mapping[str, str]) -> dict[str, object]:
    """A tensor of a step and its name in the ensemble: outputs have names there, others keep theirs."""
    return {"key": value.name, "value": names.get(value.name, value.name)}


def _max_rows(part: ServedPart, workload: Workload) -> int:
    """The most rows that every server of a part takes at once."""
    return min(
        max(instance.batch_size for instance in kind.instances if instance.part == part)
        for kind in workload.kinds
        if any(instance.part == part for instance in kind.instances)
    )


def _tensor(value: StageValue) -> dict[str, object]:
    """An input or output; its dims leave out the batch, the first dimension."""
    return {
        "name": value.name,
        "data_type": EnumName(f"TYPE_{datatype(value)}"),
        "dims": list(sizes(value)[1:]),
    }


def _parameter(key: str, value: str) -> dict[str, object]:
    return {"key": key, "value": {"string_value": value}}


class EnumName(str):
    """An enumeration's name, written without quotes."""

    __slots__ = ()


def protobuf_text(fields: Mapping[str, object], indent: str = "") -> str:
    """A protobuf message as text: a line a field, a repeated field on several lines."""
    lines = []
    for name, value in fields.items():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, Mapping):
                lines.append(f"{indent}{name} {{\n{protobuf_text(item, indent + '  ')}{indent}}}\n")
            else:
                lines.append(f"{indent}{name}: {_scalar(item)}\n")
    return "".join(lines)


def _scalar(value: object) -> str:
    if isinstance(value, str) and not isinstance(value, EnumName):
        return f'"{"".join(map(_escaped, value.encode("utf-8", "surrogatepass")))}"'
    return str(value)


def _escaped(byte: int) -> str:
    plain = 32 <= byte < 127 and byte not in b'"\\'
    return chr(byte) if plain else f"\\{byte:03o}"


def _scripts(workload: Workload, hosts: tuple[Host, ...], cut: bool) -> Iterable[DeploymentFile]:
    folders = host_folders("triton/start", hosts)
    # The server for cut models runs on the first host.
    first = workload.servers[0].host
    for host in hosts:
        servers = workload.servers_of(host)
        if not servers:
            continue
        folder = folders[host.name]
        commands = [
            f"start {server.label} {server.port} {server.kind.label} {_device(server)}" for server in servers
        ]
        if cut and host is first:
            commands.append(
                f"start {ENTRY} {ROUTER_PORT} {ENTRY} --add-host host.docker.internal:host-gateway"
            )
        text = _START.format(
            plan=workload.plan,
            host=json.dumps(host.display_name),
            file="start.sh",
            up="/".join([".."] * (folder.count("/") + 1)),
            image=image_name(workload),
            commands="\n".join(commands),
        )
        yield DeploymentFile(f"{folder}/start.sh", text, executable=True)
        script = slice_script(f"{folder}/find-slices.sh", workload, host)
        if script is not None:
            yield script


def _device(server: SliceServer) -> str:
    if server.cores is not None:
        return f"--cpuset-cpus {server.cores}"
    name = slice_variable(server)
    return f'--gpus "\\"device=${{{name}:?run find-slices.sh > slices.env first}}\\""'
