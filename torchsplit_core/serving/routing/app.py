"""One address for models whose slices are servers of their own: Open Inference Protocol v2 in front of it.

A request for a whole model goes on as it came. One for a cut model goes through its parts in a row, each part's
values in binary form, and comes back as its client asked. What waits holds no thread.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from torchsplit_core.serving.routing.calls import LARGEST_TEXT, REDEPLOY, Balancer, most_bytes, refusal
from torchsplit_core.serving.routing.connections import Answer
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
    MOST_ROWS,
    InferRequest,
    RequestFault,
    TensorPort,
    parse_request,
    response,
)
from torchsplit_core.values import quoted, suggestion
from torchsplit_core.values.serving.datatypes import SIZES
from torchsplit_core.values.serving.routes import RoutedModel, RoutedTensor, Routes, RouteStep

READY_S = 1.0
"""How long one server may take to say that it is ready."""
INLINE_BYTES = 256 * 1024
"""Larger bodies are read and written beside the event loop, so that other requests are not held up."""

P = ParamSpec("P")
T = TypeVar("T")


def router(routes: Routes, timeout_s: float) -> Starlette:
    """The application. An answer that takes longer than `timeout_s`, through all parts, is given up (504)."""
    registry = CollectorRegistry()
    observe = registry_of(registry)
    models = {model.name: _Routed(model, timeout_s) for model in routes.models}

    def unknown(request: Request) -> Response:
        name = request.path_params["name"]
        return _told(
            RequestFault("", f"unknown model {quoted(name)}", suggestion(name, models, "models"), 404)
        )

    async def infer(request: Request) -> Response:
        began = time.perf_counter()
        # A name that is not routed would be a series of its own for whatever a client writes.
        found = models.get(request.path_params["name"])
        if found is None:
            return unknown(request)
        status = 500
        try:
            answer = await _unless_gone(request, found)
            status = answer.status_code
            return answer
        finally:
            observe(found.model.name, status, time.perf_counter() - began)

    async def about(request: Request) -> Response:
        found = models.get(request.path_params["name"])
        return unknown(request) if found is None else JSONResponse(found.metadata())

    async def ready(request: Request) -> Response:
        name = request.path_params.get("name")
        if name is not None and name not in models:
            return unknown(request)
        asked = list(models.values()) if name is None else [models[name]]
        for model, there in zip(asked, await asyncio.gather(*(one.ready() for one in asked)), strict=True):
            if not there:
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
        ],
        exception_handlers={404: _no_path, 405: _no_method, Exception: _unexpected},
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


async def _unless_gone(request: Request, model: _Routed) -> Response:
    """The answer of a model; 499 where the client went away, for whom nothing more is asked of its servers."""
    try:
        body = await received(request.headers, request.receive, model.most)
    except Gone:
        return Response(status_code=499)
    except RequestFault as fault:
        return _told(fault)
    answering = asyncio.ensure_future(model.answer(dict(request.headers), body))
    leaving = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            return Response(status_code=499)
        answer = answering.result()
    finally:
        answering.cancel()
        leaving.cancel()
    kept = {name: value for name, value in answer.headers.items() if name in _KEPT}
    return Response(answer.body, answer.status, kept)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class _Routed:
    """A model and the servers of its parts."""

    def __init__(self, model: RoutedModel, timeout_s: float) -> None:
        self.model, self.timeout_s = model, timeout_s
        self.parts = [(step, Balancer(step.servers)) for step in model.steps]
        self.takes = list(map(_port, model.inputs))
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

    async def ready(self) -> bool:
        return all(await asyncio.gather(*(balancer.ready(READY_S) for _, balancer in self.parts)))

    async def answer(self, headers: Mapping[str, str], body: bytes) -> Answer:
        try:
            async with self._within(self.timeout_s):
                return await (self._whole if len(self.parts) == 1 else self._cut)(headers, body)
        except RequestFault as fault:
            return refusal(fault)

    @asynccontextmanager
    async def _within(self, limit_s: float | None) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(limit_s):
                yield
        except TimeoutError:
            problem = f"gave no answer within {limit_s:.3g} s"
            remedy = "Ask again later, or allow more time."
            raise RequestFault(self.model.name, problem, remedy, 504) from None

    async def _whole(self, headers: Mapping[str, str], body: bytes) -> Answer:
        step, balancer = self.parts[0]
        kept = {name: value for name, value in headers.items() if name in _KEPT or name == "accept-encoding"}
        rows = MOST_ROWS if "content-encoding" in headers else _most_rows(self.takes, len(body))
        most = most_bytes(list(map(_port, self.model.outputs)), rows, text=True)
        return await balancer.post(step.model, kept, body, most)

    async def _cut(self, headers: Mapping[str, str], body: bytes) -> Answer:
        asked = await _beside(
            INLINE_BYTES if "content-encoding" in headers else len(body), self._parsed, headers, body
        )
        known = {
            port.name: Tensor(port.name, port.datatype, shape, data)
            for port, shape, data in zip(self.takes, asked.shapes, asked.inputs, strict=True)
        }
        async with self._within(asked.timeout_s):
            for step, balancer in self.parts:
                refused = await self._through(step, balancer, known, asked.rows)
                if refused is not None:
                    return refused
        given = {name: known[value] for name, value in self.gives.items()}
        if odd := [name for name, one in given.items() if one.shape[:1] != (asked.rows,)]:
            return _wrong(f"output {odd[0]}", f"came without the {asked.rows} rows of the request")
        ports = [TensorPort(name, one.datatype, one.shape[1:]) for name, one in given.items()]
        values = [one.data for one in given.values()]
        text, json_bytes = await _beside(
            sum(map(len, values)), response, asked, self.model.name, ports, values
        )
        return Answer(200, headers_of(json_bytes), text)

    def _parsed(self, headers: Mapping[str, str], body: bytes) -> InferRequest:
        plain = unpacked(body, headers.get("content-encoding", ""), self.most)
        return parse_request(plain, json_length(headers.get(LENGTH_HEADER)), self.takes, list(self.gives))

    async def _through(
        self, step: RouteStep, balancer: Balancer, known: dict[str, Tensor], rows: int
    ) -> Answer | None:
        """Adds what a part gives to what is known; its refusal where it gives nothing.

        Values have the names of the model's graph here and those of its server there: they meet by their order.
        """
        ports = await balancer.ports(step.model, step.inputs)
        sent = [
            replace(known[name], name=there) for name, there in zip(step.inputs, ports.inputs, strict=True)
        ]
        body, length = await _beside(sum(len(one.data) for one in sent), request_of, sent)
        most = most_bytes(ports.outputs, rows, text=False)
        answer = await balancer.post(step.model, headers_of(length), body, most)
        if answer.status != 200:
            return answer
        told = answer.headers.get(LENGTH_HEADER, "")
        if (int(told) if told.isdecimal() and len(told) < 13 else len(answer.body)) > LARGEST_TEXT:
            return _wrong(step.model, f"gave an answer with more than {LARGEST_TEXT} bytes of JSON")
        try:
            given = outputs_of(answer.body, told or None)
        except ValueError as fault:
            return _wrong(step.model, f"gave an answer that cannot be read: {fault}")
        if len(given) != len(step.outputs):
            return _wrong(step.model, f"gave {len(given)} values, not {', '.join(step.outputs)}")
        known.update(zip(step.outputs, given, strict=True))
        return None


async def _beside(size: int, work: Callable[P, T], *given: P.args, **more: P.kwargs) -> T:
    """What `work` gives; where it is about so many bytes, worked beside the event loop."""
    if size < INLINE_BYTES:
        return work(*given, **more)
    return await asyncio.to_thread(work, *given, **more)


def _most_rows(ports: list[TensorPort], size: int) -> int:
    """Rows that a body of so many bytes can have: a number takes two of them in JSON (with its comma), or its own."""
    if not ports or any(-1 in port.shape for port in ports):
        return MOST_ROWS
    least = sum(port.row_bytes // SIZES[port.datatype] * min(2, SIZES[port.datatype]) for port in ports)
    return min(MOST_ROWS, size // least) if least else MOST_ROWS


def _port(tensor: RoutedTensor) -> TensorPort:
    return TensorPort(tensor.name, tensor.datatype, tensor.shape[1:])


async def _no_path(request: Request, _: Exception) -> Response:
    return _told(RequestFault("", f"unknown path {quoted(request.url.path)}", "Ask for /v2.", 404))


async def _no_method(request: Request, error: Exception) -> Response:
    allowed = (getattr(error, "headers", None) or {}).get("Allow", "another method")
    fault = RequestFault(request.url.path, f"does not take {request.method}", f"Send {allowed}.", 405)
    return _told(fault)


async def _unexpected(request: Request, error: Exception) -> Response:
    """Whatever nobody thought of: told as everything else is, and on standard error for who runs the router."""
    problem = f"an internal fault ({type(error).__name__}: {str(error)[:200]})"
    print(f"{request.method} {request.url.path}: {problem}", file=sys.stderr, flush=True)
    return _told(RequestFault("the router", f"has {problem}", "Report it with what was sent.", 500))


def _shown(tensor: RoutedTensor) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}


def _told(fault: RequestFault) -> Response:
    return JSONResponse({"error": str(fault)}, fault.status)


def _wrong(where: str, problem: str) -> Answer:
    """What a server of a part gave that the routes do not know."""
    return refusal(RequestFault(where, problem, REDEPLOY, 502))
