"""One address for models whose slices are servers of their own: Open Inference Protocol v2 in front of it.

A request for a whole model goes on as it came. One for a cut model goes through its parts in a row, each part's
values in binary form, and comes back as its client asked.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from anyio import to_thread
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from torchsplit_core.serving.routing.calls import Answer, Balancer
from torchsplit_core.serving.routing.wire import (
    HEADER_LENGTH,
    Tensor,
    WireFault,
    read,
    wanted_as_json,
    wanted_names,
    write,
)
from torchsplit_core.values.serving.routes import RoutedModel, RoutedTensor, Routes, RouteStep

AT_ONCE = 512
"""Requests under way; each waits in a thread."""
READY_S = 1.0
"""How long one server may take to say that it is ready."""


def router(routes: Routes, timeout_s: float) -> Starlette:
    """The application. A server that takes longer than `timeout_s` for a part is given up (504)."""
    registry = CollectorRegistry()
    models = {model.name: _Routed(model, timeout_s, registry_of(registry)) for model in routes.models}
    threads = to_thread.current_default_thread_limiter

    async def infer(request: Request) -> Response:
        threads().total_tokens = AT_ONCE
        found = models.get(request.path_params["name"])
        if found is None:
            return _unknown(request)
        try:
            body = await request.body()
        except ClientDisconnect:
            return Response(status_code=499)
        answer = await to_thread.run_sync(found.answer, dict(request.headers), body)
        kept = {name: value for name, value in answer.headers.items() if name in _KEPT}
        return Response(answer.body, answer.status, kept)

    async def about(request: Request) -> Response:
        found = models.get(request.path_params["name"])
        return _unknown(request) if found is None else JSONResponse(found.metadata())

    async def ready(request: Request) -> Response:
        name = request.path_params.get("name")
        if name is not None and name not in models:
            return _unknown(request)
        asked = models.values() if name is None else (models[name],)
        for model in asked:
            if not await to_thread.run_sync(model.ready):
                return _fault(503, f"a part of {model.model.name} has no server that is ready")
        return Response()

    async def live(_: Request) -> Response:
        return Response()

    async def server(_: Request) -> Response:
        return JSONResponse({"name": "torchsplit", "version": "1", "extensions": ["binary_tensor_data"]})

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return Starlette(
        routes=[
            Route("/v2", server),
            Route("/v2/health/live", live),
            Route("/v2/health/ready", ready),
            Route("/v2/models/{name:path}/infer", infer, methods=["POST"]),
            Route("/v2/models/{name:path}/ready", ready),
            Route("/v2/models/{name:path}", about),
            Route("/metrics", metrics),
        ]
    )


_KEPT = ("content-type", HEADER_LENGTH.lower(), "content-encoding", "retry-after")

_Observe = Callable[[str, int, float], None]


def registry_of(registry: CollectorRegistry) -> _Observe:
    """What counts answers by model and status, and their seconds."""
    count = Counter(
        "torchsplit_route_requests", "Answers by model and status", ["model", "code"], registry=registry
    )
    seconds = Histogram(
        "torchsplit_route_seconds", "Seconds from request to answer", ["model"], registry=registry
    )

    def observe(model: str, code: int, taken_s: float) -> None:
        count.labels(model, str(code)).inc()
        seconds.labels(model).observe(taken_s)

    return observe


class _Routed:
    """A model and the servers of its parts."""

    def __init__(self, model: RoutedModel, timeout_s: float, observe: _Observe) -> None:
        self.model, self.timeout_s, self.observe = model, timeout_s, observe
        self.parts = [(step, Balancer(step.servers)) for step in model.steps]
        self.takes = {tensor.name: tensor for tensor in model.inputs}
        self.gives = {tensor.name: tensor.value for tensor in model.outputs}

    def metadata(self) -> dict[str, Any]:
        return {
            "name": self.model.name,
            "versions": ["1"],
            "platform": "torchsplit",
            "inputs": [_shown(tensor) for tensor in self.model.inputs],
            "outputs": [_shown(tensor) for tensor in self.model.outputs],
        }

    def ready(self) -> bool:
        return all(balancer.ready(READY_S) for _, balancer in self.parts)

    def answer(self, headers: Mapping[str, str], body: bytes) -> Answer:
        began = time.perf_counter()
        try:
            found = self._answer(headers, body)
        except WireFault as fault:
            found = _refusal(400, str(fault))
        except TimeoutError:
            found = _refusal(504, f"a part of {self.model.name} did not answer within {self.timeout_s:g} s")
        self.observe(self.model.name, found.status, time.perf_counter() - began)
        return found

    def _answer(self, headers: Mapping[str, str], body: bytes) -> Answer:
        if len(self.parts) == 1:
            step, balancer = self.parts[0]
            kept = {
                name: value for name, value in headers.items() if name in _KEPT or name == "accept-encoding"
            }
            return balancer.post(step.model, kept, body, self.timeout_s)
        asked = read(body, headers.get(HEADER_LENGTH.lower()), "inputs")
        known = {tensor.name: tensor for tensor in asked.tensors}
        self._check(known)
        names = wanted_names(asked.head, tuple(self.gives))
        for step, balancer in self.parts:
            given = self._through(step, balancer, known)
            if given is not None:
                return given
        head = {"model_name": self.model.name, "model_version": "1"}
        if "id" in asked.head:
            head["id"] = asked.head["id"]
        text, length = write(
            head,
            "outputs",
            [replace(known[self.gives[name]], name=name) for name in names],
            wanted_as_json(asked.head, names),
        )
        return Answer(200, _headers(length), text)

    def _check(self, known: Mapping[str, Tensor]) -> None:
        """Raises WireFault for inputs that are not the model's."""
        if set(known) != set(self.takes):
            raise WireFault(
                f"inputs are {', '.join(known) or 'none'}; {self.model.name} takes {', '.join(self.takes)}"
            )
        batches = set()
        for tensor in known.values():
            wanted = self.takes[tensor.name]
            fits = len(tensor.shape) == len(wanted.shape) and all(
                size in (-1, found) for size, found in zip(wanted.shape, tensor.shape, strict=True)
            )
            if tensor.datatype != wanted.datatype or not fits:
                raise WireFault(
                    f"input {tensor.name} is {tensor.datatype} {list(tensor.shape)}; "
                    f"it is {wanted.datatype} {list(wanted.shape)}"
                )
            batches.add(tensor.shape[0])
        if len(batches) > 1 or 0 in batches:
            raise WireFault("the first dimension of all inputs is one batch of at least 1")

    def _through(self, step: RouteStep, balancer: Balancer, known: dict[str, Tensor]) -> Answer | None:
        """Adds what a part gives to what is known; its refusal where it gives nothing.

        Values have the names of the model's graph here and those of its server there: they meet by their order.
        """
        names = balancer.input_names(step.model, self.timeout_s)
        if names is None:
            return _refusal(503, f"no server of {step.model} is reached")
        if len(names) != len(step.inputs):
            return _refusal(502, f"{step.model} takes {', '.join(names)}, not {', '.join(step.inputs)}")
        sent = [replace(known[name], name=there) for name, there in zip(step.inputs, names, strict=True)]
        body, length = write({"parameters": {"binary_data_output": True}}, "inputs", sent)
        answer = balancer.post(step.model, _headers(length), body, self.timeout_s)
        if answer.status != 200:
            return answer
        try:
            given = read(answer.body, answer.headers.get(HEADER_LENGTH.lower()), "outputs").tensors
        except WireFault as fault:
            return _refusal(502, f"{step.model} answered what is no answer: {fault}")
        if len(given) != len(step.outputs):
            return _refusal(502, f"{step.model} gave {len(given)} values, not {', '.join(step.outputs)}")
        known.update(
            (name, replace(tensor, name=name)) for name, tensor in zip(step.outputs, given, strict=True)
        )
        return None


def _headers(length: str | None) -> dict[str, str]:
    if length is None:
        return {"content-type": "application/json"}
    return {"content-type": "application/octet-stream", HEADER_LENGTH.lower(): length}


def _shown(tensor: RoutedTensor) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}


def _unknown(request: Request) -> Response:
    return _fault(404, f"there is no model {request.path_params['name']!r} here")


def _fault(status: int, words: str) -> Response:
    return JSONResponse({"error": words}, status)


def _refusal(status: int, words: str) -> Answer:
    return Answer(status, {"content-type": "application/json"}, json.dumps({"error": words}).encode())
