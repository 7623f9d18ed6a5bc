"""A plan's models as a Ray Serve application: a deployment for each part on each kind of slice, and one in front.

Ray imports `build` by the name that a serve configuration gives; nothing else of the product imports this module.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from random import choices
from typing import Any

import torch
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from torchsplit_core.serving.routing.wire import (
    HEADER_LENGTH,
    Tensor,
    WireFault,
    read,
    wanted_as_json,
    wanted_names,
    write,
)

DTYPES = {
    "BOOL": torch.bool, "UINT8": torch.uint8, "UINT16": torch.uint16, "UINT32": torch.uint32, "UINT64": torch.uint64,
    "INT8": torch.int8, "INT16": torch.int16, "INT32": torch.int32, "INT64": torch.int64,
    "FP16": torch.float16, "FP32": torch.float32, "FP64": torch.float64, "BF16": torch.bfloat16,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}

Values = dict[str, torch.Tensor]


class PartServer:
    """A part on a slice: batches of up to `max_batch` rows, of requests that come within `wait_s`."""

    def __init__(self, part: Mapping[str, Any]) -> None:
        self.inputs, self.outputs = tuple(part["inputs"]), tuple(part["outputs"])
        self.max_batch = int(part["max_batch"])
        self.device = torch.device(part["device"])
        program = torch.export.load(Path(part["file"]))
        if self.device.type == "cpu":
            # The cores that its Ray node was started on.
            torch.set_num_threads(len(os.sched_getaffinity(0)))
        if self.device.type != "cpu":
            from torch.export.passes import move_to_device_pass

            program = move_to_device_pass(program, self.device)
        self.module = program.module(check_guards=False)
        self.run.set_max_batch_size(self.max_batch)  # type: ignore[attr-defined]
        self.run.set_batch_wait_timeout_s(float(part["wait_s"]))  # type: ignore[attr-defined]

    @serve.batch
    async def run(self, requests: Sequence[Values]) -> list[Values]:
        """What the part gives for each request's values; together as far as they fit into a batch."""
        return await asyncio.to_thread(self._in_batches, requests)

    async def answer(self, values: Values) -> Values:
        """For one request."""
        found: Values = await self.run(values)
        return found

    def _in_batches(self, requests: Sequence[Values]) -> list[Values]:
        answers: list[Values] = []
        taken: list[Values] = []
        for values in requests:
            if taken and sum(map(_rows, taken)) + _rows(values) > self.max_batch:
                answers += self._together(taken)
                taken = []
            taken.append(values)
        return answers + self._together(taken)

    def _together(self, requests: Sequence[Values]) -> list[Values]:
        joined = [torch.cat([values[name] for values in requests]).to(self.device) for name in self.inputs]
        with torch.inference_mode():
            given = self.module(*joined)
        sizes = [_rows(values) for values in requests]
        split = [tensor.cpu().split(sizes) for tensor in given]
        # A view would be sent with all that it is a view of.
        return [
            {name: piece.clone() for name, piece in zip(self.outputs, pieces, strict=True)}
            for pieces in zip(*split, strict=True)
        ]


class Front:
    """Open Inference Protocol v2 for all models; a cut model's values go from part to part."""

    def __init__(self, models: Sequence[Mapping[str, Any]], handles: Mapping[str, Any]) -> None:
        self.models = {model["name"]: model for model in models}
        self.handles = handles

    async def __call__(self, request: Request) -> Response:
        path = request.url.path.strip("/").split("/", 2)
        if path[:2] == ["v2", "health"]:
            return Response()
        name, _, verb = path[2].rpartition("/") if len(path) == 3 else ("", "", "")
        if path[:2] != ["v2", "models"] or not (name or verb):
            return JSONResponse({"name": "torchsplit", "version": "1", "extensions": ["binary_tensor_data"]})
        if request.method == "GET":
            model = self.models.get(f"{name}/{verb}" if name else verb)
            return _unknown(verb) if model is None else JSONResponse(_metadata(model))
        model = self.models.get(name)
        if model is None or verb != "infer":
            return _unknown(name or verb)
        try:
            return await self._infer(model, request)
        except WireFault as fault:
            return JSONResponse({"error": str(fault)}, 400)

    async def _infer(self, model: Mapping[str, Any], request: Request) -> Response:
        asked = read(await request.body(), request.headers.get(HEADER_LENGTH), "inputs")
        known = {tensor.name: _torch(tensor) for tensor in asked.tensors}
        _check(model, known)
        gives = {entry["name"]: entry["value"] for entry in model["outputs"]}
        names = wanted_names(asked.head, tuple(gives))
        for step in model["steps"]:
            chosen = choices(step["deployments"], cum_weights=list(accumulate(step["weights"])))[0]
            values = {name: known[name] for name in step["inputs"]}
            known |= await self.handles[chosen].answer.remote(values)
        head: dict[str, Any] = {"model_name": model["name"], "model_version": "1"}
        if "id" in asked.head:
            head["id"] = asked.head["id"]
        text, length = write(
            head,
            "outputs",
            [_wire(name, known[gives[name]]) for name in names],
            wanted_as_json(asked.head, names),
        )
        if length is None:
            return Response(text, media_type="application/json")
        return Response(text, media_type="application/octet-stream", headers={HEADER_LENGTH: length})


def build(arguments: Mapping[str, str]) -> Any:
    """The application of a plan: `plan` names its description (application.json) as the nodes see it."""
    told = json.loads(Path(arguments["plan"]).read_text(encoding="utf-8"))
    handles = {
        part["deployment"]: serve.deployment(PartServer, name=part["deployment"]).bind(part)  # type: ignore[attr-defined]
        for part in told["parts"]
    }
    return serve.deployment(Front, name="front").bind(told["models"], handles)  # type: ignore[attr-defined]


def _rows(values: Values) -> int:
    return int(next(iter(values.values())).shape[0])


def _torch(tensor: Tensor) -> torch.Tensor:
    # A bytearray: torch wants what it may write to.
    flat = torch.frombuffer(bytearray(tensor.data), dtype=DTYPES[tensor.datatype]) if tensor.data else None
    return (
        torch.empty(tensor.shape, dtype=DTYPES[tensor.datatype])
        if flat is None
        else flat.reshape(tensor.shape)
    )


def _wire(name: str, value: torch.Tensor) -> Tensor:
    data = value.contiguous().view(torch.uint8) if value.dim() else value.reshape(1).view(torch.uint8)
    return Tensor(name, NAMES[value.dtype], tuple(value.shape), data.numpy().tobytes())


def _check(model: Mapping[str, Any], known: Values) -> None:
    """Raises WireFault for inputs that are not the model's, or too many rows for its batches."""
    takes = {entry["name"]: entry for entry in model["inputs"]}
    if set(takes) != set(known):
        raise WireFault(f"inputs are {', '.join(known) or 'none'}; {model['name']} takes {', '.join(takes)}")
    for name, value in known.items():
        wanted = takes[name]
        fits = value.dim() == len(wanted["shape"]) and all(
            size in (-1, found) for size, found in zip(wanted["shape"], value.shape, strict=True)
        )
        if NAMES[value.dtype] != wanted["datatype"] or not fits:
            raise WireFault(f"input {name} is {wanted['datatype']} {wanted['shape']}")
    rows = {value.shape[0] for value in known.values()}
    if len(rows) != 1 or not 1 <= min(rows) <= model["max_batch"]:
        raise WireFault(f"the first dimension of all inputs is one batch of 1 to {model['max_batch']}")


def _metadata(model: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": model["name"],
        "versions": ["1"],
        "platform": "torchsplit",
        "inputs": model["inputs"],
        "outputs": [{key: entry[key] for key in ("name", "datatype", "shape")} for entry in model["outputs"]],
    }


def _unknown(name: str) -> Response:
    return JSONResponse({"error": f"there is no model {name!r} here"}, 404)
