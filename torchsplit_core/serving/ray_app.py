"""A plan as a Ray Serve application: a deployment for each part on each kind of slice, and a frontend.

Ray imports `build` by the name in a serve configuration; nothing else in the product imports this module.
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

from torchsplit_core.serving.protocol.http_body import (
    content_headers,
    decompress,
    max_body_bytes,
    parse_json_length,
)
from torchsplit_core.serving.protocol.tensors import (
    LENGTH_HEADER,
    RequestFault,
    TensorPort,
    encode_response,
    parse_request,
    too_many_rows,
)
from torchsplit_core.values import quoted, suggestion
from torchsplit_core.values.serving.datatypes import OF_TORCH

DTYPES: dict[str, torch.dtype] = {datatype: getattr(torch, name) for name, datatype in OF_TORCH.items()}

Values = dict[str, torch.Tensor]


class PartServer:
    """A part on a slice; it batches up to `max_batch` rows of requests that arrive within `wait_s`."""

    def __init__(self, part: Mapping[str, Any]) -> None:
        self.inputs, self.outputs = tuple(part["inputs"]), tuple(part["outputs"])
        self.max_batch = int(part["max_batch"])
        self.device = torch.device(part["device"])
        program = torch.export.load(Path(part["file"]))
        if self.device.type == "cpu":
            # The cores that its Ray node was started on.
            torch.set_num_threads(len(os.sched_getaffinity(0)))
        else:
            from torch.export.passes import move_to_device_pass

            program = move_to_device_pass(program, self.device)
        self.module = program.module(check_guards=False)
        self.run.set_max_batch_size(self.max_batch)  # type: ignore[attr-defined]
        self.run.set_batch_wait_timeout_s(float(part["wait_s"]))  # type: ignore[attr-defined]

    @serve.batch
    async def run(self, requests: Sequence[Values]) -> list[Values]:
        """Run the part for several requests, in batches."""
        return await asyncio.to_thread(self._run_in_batches, requests)

    async def answer(self, values: Values) -> Values:
        """Run the part for one request."""
        outputs: Values = await self.run(values)
        return outputs

    def _run_in_batches(self, requests: Sequence[Values]) -> list[Values]:
        outputs: list[Values] = []
        batch: list[Values] = []
        for values in requests:
            if batch and sum(map(_rows, batch)) + _rows(values) > self.max_batch:
                outputs += self._run_batch(batch)
                batch = []
            batch.append(values)
        return outputs + self._run_batch(batch)

    def _run_batch(self, requests: Sequence[Values]) -> list[Values]:
        joined = [torch.cat([values[name] for values in requests]).to(self.device) for name in self.inputs]
        with torch.inference_mode():
            outputs = self.module(*joined)
        sizes = [_rows(values) for values in requests]
        split = [tensor.cpu().split(sizes) for tensor in outputs]
        # Sending a view would send the whole tensor behind it.
        return [
            {name: piece.clone() for name, piece in zip(self.outputs, pieces, strict=True)}
            for pieces in zip(*split, strict=True)
        ]


class RayFrontend:
    """The Open Inference Protocol v2 for all models; passes a cut model's values from part to part."""

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
            return self._unknown(verb) if model is None else JSONResponse(_metadata(model))
        model = self.models.get(name)
        if model is None or verb != "infer":
            return self._unknown(name or verb)
        try:
            return await self._infer(model, request)
        except RequestFault as fault:
            return _error_response(fault)

    def _unknown(self, name: str) -> Response:
        remedy = suggestion(name, self.models, "models")
        return _error_response(RequestFault("", f"unknown model {quoted(name)}", remedy, 404))

    async def _infer(self, model: Mapping[str, Any], request: Request) -> Response:
        inputs = [
            TensorPort(entry["name"], entry["datatype"], tuple(entry["shape"][1:]))
            for entry in model["inputs"]
        ]
        output_values = {entry["name"]: entry["value"] for entry in model["outputs"]}
        max_bytes = max_body_bytes(inputs)
        body = decompress(await request.body(), request.headers.get("content-encoding", ""), max_bytes)
        parsed = parse_request(
            body, parse_json_length(request.headers.get(LENGTH_HEADER)), inputs, list(output_values)
        )
        if parsed.rows > model["max_batch"]:
            raise too_many_rows(inputs[0].name, parsed.rows, model["max_batch"])
        values = {
            port.name: _torch(port.datatype, shape, data)
            for port, shape, data in zip(inputs, parsed.shapes, parsed.inputs, strict=True)
        }
        try:
            async with asyncio.timeout(parsed.timeout_s):
                await self._run_steps(model, values)
        except TimeoutError:
            problem = f"gave no answer within {parsed.timeout_s:g} s"
            raise RequestFault(model["name"], problem, "Ask again later, or allow more time.", 504) from None
        outputs = {name: values[value] for name, value in output_values.items()}
        ports = [
            TensorPort(name, _datatype(tensor), tuple(tensor.shape[1:])) for name, tensor in outputs.items()
        ]
        text, length = encode_response(parsed, model["name"], ports, list(map(_bytes, outputs.values())))
        return Response(text, headers=content_headers(length))

    async def _run_steps(self, model: Mapping[str, Any], tensors: Values) -> None:
        """Run the parts in order; adds their outputs to `tensors`."""
        for step in model["steps"]:
            chosen = choices(step["deployments"], cum_weights=list(accumulate(step["weights"])))[0]
            values = {name: tensors[name] for name in step["inputs"]}
            tensors |= await self.handles[chosen].answer.remote(values)


def build(arguments: Mapping[str, str]) -> Any:
    """The application of a plan: `plan` names its description (application.json) as the nodes see it."""
    description = json.loads(Path(arguments["plan"]).read_text(encoding="utf-8"))
    handles = {
        part["deployment"]: serve.deployment(PartServer, name=part["deployment"]).bind(part)  # type: ignore[attr-defined]
        for part in description["parts"]
    }
    return serve.deployment(RayFrontend, name="front").bind(description["models"], handles)  # type: ignore[attr-defined]


def _rows(values: Values) -> int:
    return int(next(iter(values.values())).shape[0])


def _torch(datatype: str, shape: tuple[int, ...], data: memoryview) -> torch.Tensor:
    dtype = DTYPES[datatype]
    # torch needs a writable buffer.
    return (
        torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)
        if data
        else torch.empty(shape, dtype=dtype)
    )


def _bytes(value: torch.Tensor) -> bytes:
    content: bytes = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return content


def _datatype(value: torch.Tensor) -> str:
    return OF_TORCH[str(value.dtype).removeprefix("torch.")]


def _metadata(model: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": model["name"],
        "versions": ["1"],
        "platform": "torchsplit",
        "inputs": model["inputs"],
        "outputs": [{key: entry[key] for key in ("name", "datatype", "shape")} for entry in model["outputs"]],
    }


def _error_response(fault: RequestFault) -> Response:
    return JSONResponse({"error": str(fault)}, fault.status)
