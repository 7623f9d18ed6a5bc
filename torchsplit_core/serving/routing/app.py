"""One address for models whose slices are servers of their own: Open Inference Protocol v2 in front of it.

A request for a whole model goes on as it came. One for a cut model goes through its parts in a row, each part's
values in binary form, and comes back as its client asked.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from anyio import to_thread
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from torchsplit_core.serving.routing.calls import Answer, Balancer, not_reached, refusal
from torchsplit_core.serving.wire.asking import Tensor, outputs_of, request_of
from torchsplit_core.serving.wire.bodies import (
    Gone,
    headers_of,
    json_length,
    largest_body,
    received,
    unpacked,
)
from torchsplit_core.serving.wire.tensors import (
    LENGTH_HEADER,
    RequestFault,
    TensorPort,
    parse_request,
    response,
)
from torchsplit_core.values import quoted, suggestion
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

    def unknown(request: Request) -> Response:
        name = request.path_params["name"]
        return _told(
            RequestFault("", f"unknown model {quoted(name)}", suggestion(name, models, "models"), 404)
        )

    async def infer(request: Request) -> Response:
        threads().total_tokens = AT_ONCE
        found = models.get(request.path_params["name"])
        if found is None:
            return unknown(request)
        try:
            body = await received(request.headers, request.receive, found.most)
        except Gone:
            return Response(status_code=499)
        except RequestFault as fault:
            return _told(fault)
        answer = await to_thread.run_sync(found.answer, dict(request.headers), body)
        kept = {name: value for name, value in answer.headers.items() if name in _KEPT}
        return Response(answer.body, answer.status, kept)

    async def about(request: Request) -> Response:
        found = models.get(request.path_params["name"])
        return unknown(request) if found is None else JSONResponse(found.metadata())

    async def ready(request: Request) -> Response:
        name = request.path_params.get("name")
        if name is not None and name not in models:
            return unknown(request)
        asked = models.values() if name is None else (models[name],)
        for model in asked:
            if not await to_thread.run_sync(model.ready):
                problem = "has a part without a server that is ready"
                return _told(RequestFault(model.model.name, problem, "Ask again later.", 503))
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


_KEPT = ("content-type", LENGTH_HEADER, "content-encoding", "retry-after")

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
        self.takes = [TensorPort(one.name, one.datatype, one.shape[1:]) for one in model.inputs]
        self.most = largest_body(self.takes)
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
        except RequestFault as fault:
            found = refusal(fault)
        self.observe(self.model.name, found.status, time.perf_counter() - began)
        return found

    def _answer(self, headers: Mapping[str, str], body: bytes) -> Answer:
        if len(self.parts) == 1:
            step, balancer = self.parts[0]
            kept = {
                name: value for name, value in headers.items() if name in _KEPT or name == "accept-encoding"
            }
            return self._post(step, balancer, kept, body, self.timeout_s)
        plain = unpacked(body, headers.get("content-encoding", ""), self.most)
        length = json_length(headers.get(LENGTH_HEADER))
        asked = parse_request(plain, length, self.takes, list(self.gives))
        until = time.monotonic() + (math.inf if asked.timeout_s is None else asked.timeout_s)
        known = {
            port.name: Tensor(port.name, port.datatype, shape, data)
            for port, shape, data in zip(self.takes, asked.shapes, asked.inputs, strict=True)
        }
        for step, balancer in self.parts:
            refused = self._through(step, balancer, known, until)
            if refused is not None:
                return refused
        given = {name: known[value] for name, value in self.gives.items()}
        if odd := [name for name, one in given.items() if one.shape[:1] != (asked.rows,)]:
            return _wrong(f"output {odd[0]}", f"came without the {asked.rows} rows of the request")
        ports = [TensorPort(name, one.datatype, one.shape[1:]) for name, one in given.items()]
        text, json_bytes = response(asked, self.model.name, ports, [one.data for one in given.values()])
        return Answer(200, headers_of(json_bytes), text)

    def _through(
        self, step: RouteStep, balancer: Balancer, known: dict[str, Tensor], until: float
    ) -> Answer | None:
        """Adds what a part gives to what is known; its refusal where it gives nothing.

        Values have the names of the model's graph here and those of its server there: they meet by their order.
        """
        names = balancer.input_names(step.model, self.timeout_s)
        if names is None:
            return refusal(not_reached(step.model))
        if len(names) != len(step.inputs):
            return _wrong(step.model, f"takes {', '.join(names)}, not {', '.join(step.inputs)}")
        body, length = request_of(
            [replace(known[name], name=there) for name, there in zip(step.inputs, names, strict=True)]
        )
        limit_s = min(self.timeout_s, until - time.monotonic())
        answer = self._post(step, balancer, headers_of(length), body, limit_s)
        if answer.status != 200:
            return answer
        try:
            given = outputs_of(answer.body, answer.headers.get(LENGTH_HEADER))
        except ValueError as fault:
            return _wrong(step.model, f"gave an answer that cannot be read: {fault}")
        if len(given) != len(step.outputs):
            return _wrong(step.model, f"gave {len(given)} values, not {', '.join(step.outputs)}")
        known.update(zip(step.outputs, given, strict=True))
        return None

    def _post(
        self, step: RouteStep, balancer: Balancer, headers: Mapping[str, str], body: bytes, limit_s: float
    ) -> Answer:
        """A part's answer. Raises RequestFault where there is none in time."""
        try:
            if limit_s <= 0:
                raise TimeoutError
            return balancer.post(step.model, headers, body, limit_s)
        except TimeoutError:
            problem = f"has a part that gave no answer within {max(0.0, limit_s):.3g} s"
            remedy = "Ask again later, or allow more time."
            raise RequestFault(self.model.name, problem, remedy, 504) from None


def _shown(tensor: RoutedTensor) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}


def _told(fault: RequestFault) -> Response:
    return JSONResponse({"error": str(fault)}, fault.status)


def _wrong(where: str, problem: str) -> Answer:
    """What a server of a part gave that the routes do not know."""
    return refusal(RequestFault(where, problem, "Deploy the parts and the routes anew, from one plan.", 502))
