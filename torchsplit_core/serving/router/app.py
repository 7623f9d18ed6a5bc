"""The router: one address, speaking the Open Inference Protocol v2, for models whose slices are separate servers.

A request for a whole model is forwarded unchanged. One for a cut model passes through its parts, with tensors as
bytes, and returns in the form that the client asked for. Waiting requests hold no thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, ParamSpec, TypeVar

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest

from torchsplit_core.serving.protocol import http_server
from torchsplit_core.serving.protocol.access_guard import HEALTH, AccessGuard
from torchsplit_core.serving.protocol.body_readers import BodyReaders, is_quick_to_read
from torchsplit_core.serving.protocol.client import RawTensor, decode_outputs, encode_request
from torchsplit_core.serving.protocol.http_body import content_headers, max_body_bytes, parse_json_length
from torchsplit_core.serving.protocol.http_client import ClientResponse
from torchsplit_core.serving.protocol.http_server import Request, json_response
from torchsplit_core.serving.protocol.tensors import (
    LENGTH_HEADER,
    MOST_ROWS,
    InferRequest,
    RequestFault,
    TensorPort,
    encode_response,
    parse_request,
)
from torchsplit_core.serving.router.load_balancer import (
    LARGEST_TEXT,
    REDEPLOY,
    LoadBalancer,
    error_response,
    max_response_bytes,
)
from torchsplit_core.serving.settings import AccessSettings, RequestLimits
from torchsplit_core.values import quoted, suggestion
from torchsplit_core.values.serving.datatypes import SIZES
from torchsplit_core.values.serving.routes import RoutedModel, RoutedTensor, Routes, RouteStep

READY_S = 1.0
"""Time for a server to say that it is ready."""
FIXED_PATHS = {"/v2": "server", HEALTH[0]: "live", HEALTH[1]: "ready", "/metrics": "metrics"}
"""Paths without a model, and their verbs."""
INLINE_BYTES = 256 * 1024
"""More bytes are encoded in a thread, so that other requests are not delayed."""

P = ParamSpec("P")
T = TypeVar("T")


class Router:
    """The application that `HttpServer` calls. Create it in the event loop.

    A response may take `timeout_s` through all parts (else 504). The servers get the same token as the clients send.
    """

    def __init__(
        self, routes: Routes, timeout_s: float, access: AccessSettings, limits: RequestLimits
    ) -> None:
        self.guard, self.readers = AccessGuard(access), BodyReaders(limits)
        self.models = {
            model.name: _ModelRoute(model, timeout_s, limits, self.readers, access.token)
            for model in routes.models
        }
        self._registry = CollectorRegistry()
        counter = partial(Counter, registry=self._registry)
        self._count = counter("torchsplit_route_requests", "Answers by model and status", ["model", "code"])
        self._seconds = Histogram(
            "torchsplit_route_seconds", "Seconds from request to answer", ["model"], registry=self._registry
        )
        self._refused = counter(
            "torchsplit_route_refused",
            "Requests and connections that a limit refused, by the limit",
            ["reason"],
        )
        self._tasks: set[asyncio.Task[None]] = set()

    def admit(self, request: Request) -> int:
        """Largest allowed body in bytes. Raises RequestFault if access is denied or the path is unknown."""
        self.guard.check(request)
        model, verb = self._resolve(request)
        return model.max_body_bytes if model is not None and verb == "infer" else http_server.LARGE_BODY

    def refused(self, request: Request | None, fault: RequestFault) -> None:
        """Count a request or connection that a limit rejected."""
        self._refused.labels(fault.reason or "request").inc()

    def handle(self, request: Request) -> None:
        """Reply now, or once the servers have responded."""
        model, verb = self._resolve(request)
        if model is not None and verb == "infer":
            self._spawn(request, self._infer(model, request))
        elif verb == "ready":
            routes = list(self.models.values()) if model is None else [model]
            self._spawn(request, self._ready(request, routes))
        elif model is not None:
            request.reply(json_response(model.metadata()))
        elif verb == "metrics":
            kind = (("content-type", CONTENT_TYPE_LATEST),)
            request.reply(http_server.HttpResponse(200, (generate_latest(self._registry),), kind))
        elif verb == "live":
            request.reply(json_response({"live": True}))
        else:
            extensions = ["binary_tensor_data"]
            request.reply(json_response({"name": "torchsplit", "version": "1", "extensions": extensions}))

    def _resolve(self, request: Request) -> tuple[_ModelRoute | None, str]:
        """Model and verb of a path. Raises RequestFault for an unknown path, model or method."""
        path = request.path
        if path in FIXED_PATHS:
            http_server.check_method(request, "GET")
            return None, FIXED_PATHS[path]
        if not path.startswith("/v2/models/"):
            raise RequestFault("", f"unknown path {quoted(path)}", "Ask for /v2.", 404)
        name = path.removeprefix("/v2/models/")
        verb = "about"
        for ending in ("infer", "ready"):
            if name.endswith(f"/{ending}") and name not in self.models:
                name, verb = name.removesuffix(f"/{ending}"), ending
        if name not in self.models:
            remedy = suggestion(name, self.models, "models")
            raise RequestFault("", f"unknown model {quoted(name)}", remedy, 404)
        http_server.check_method(request, "POST" if verb == "infer" else "GET")
        return self.models[name], verb

    def _spawn(self, request: Request, work: Coroutine[Any, Any, None]) -> None:
        """Run a task that is cancelled when the client disconnects."""
        task = asyncio.create_task(work)
        request.gone = task.cancel
        self._tasks.add(task)

        def on_done(done: asyncio.Task[None]) -> None:
            self._tasks.discard(done)
            if not done.cancelled() and (error := done.exception()) is not None:
                request.fail(error)

        task.add_done_callback(on_done)

    async def _infer(self, model: _ModelRoute, request: Request) -> None:
        began, status = time.perf_counter(), 500
        try:
            headers = {
                name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers.items()
            }
            response = await model.infer(headers, request.body)
            status = response.status
            forwarded = tuple(item for item in response.headers.items() if item[0] in _FORWARDED_HEADERS)
            request.reply(http_server.HttpResponse(status, (response.body,), forwarded))
        except asyncio.CancelledError:
            status = 499
            raise
        finally:
            self._count.labels(model.model.name, str(status)).inc()
            self._seconds.labels(model.model.name).observe(time.perf_counter() - began)

    async def _ready(self, request: Request, routes: list[_ModelRoute]) -> None:
        states = await asyncio.gather(*(route.ready() for route in routes))
        for model, is_ready in zip(routes, states, strict=True):
            if not is_ready:
                problem = "has a part without a server that is ready"
                raise RequestFault(model.model.name, problem, "Ask again later.", 503)
        request.reply(json_response({"ready": True}))


_FORWARDED_HEADERS = ("content-type", LENGTH_HEADER, "content-encoding", "retry-after")


class _ModelRoute:
    """A model and the servers of its parts."""

    def __init__(
        self,
        model: RoutedModel,
        timeout_s: float,
        limits: RequestLimits,
        readers: BodyReaders,
        token: str | None,
    ) -> None:
        self.model, self.timeout_s, self.readers = model, timeout_s, readers
        self.parts = [(step, LoadBalancer(step.servers, token)) for step in model.steps]
        self.inputs = list(map(_port, model.inputs))
        self.max_body_bytes = max_body_bytes(self.inputs, limits)
        self.output_values = {tensor.name: tensor.value for tensor in model.outputs}

    def metadata(self) -> dict[str, Any]:
        return {
            "name": self.model.name,
            "versions": ["1"],
            "platform": "torchsplit",
            "inputs": [_tensor_metadata(tensor) for tensor in self.model.inputs],
            "outputs": [_tensor_metadata(tensor) for tensor in self.model.outputs],
        }

    async def ready(self) -> bool:
        return all(await asyncio.gather(*(balancer.ready(READY_S) for _, balancer in self.parts)))

    async def infer(self, headers: Mapping[str, str], body: bytes | bytearray) -> ClientResponse:
        try:
            async with self._deadline(self.timeout_s):
                return await (self._forward if len(self.parts) == 1 else self._run_parts)(headers, body)
        except RequestFault as fault:
            return error_response(fault)

    @asynccontextmanager
    async def _deadline(self, limit_s: float | None) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(limit_s):
                yield
        except TimeoutError:
            problem = f"gave no answer within {limit_s:.3g} s"
            remedy = "Ask again later, or allow more time."
            raise RequestFault(self.model.name, problem, remedy, 504) from None

    async def _forward(self, headers: Mapping[str, str], body: bytes | bytearray) -> ClientResponse:
        step, balancer = self.parts[0]
        forwarded = {
            name: value
            for name, value in headers.items()
            if name in _FORWARDED_HEADERS or name == "accept-encoding"
        }
        rows = MOST_ROWS if "content-encoding" in headers else _most_rows(self.inputs, len(body))
        max_bytes = max_response_bytes(list(map(_port, self.model.outputs)), rows, text=True)
        return await balancer.send(step.model, forwarded, body, max_bytes)

    async def _run_parts(self, headers: Mapping[str, str], body: bytes | bytearray) -> ClientResponse:
        parsed = await self._parsed(headers, body)
        values_by_name = {
            port.name: RawTensor(port.name, port.datatype, shape, data)
            for port, shape, data in zip(self.inputs, parsed.shapes, parsed.inputs, strict=True)
        }
        async with self._deadline(parsed.timeout_s):
            for step, balancer in self.parts:
                failure = await self._run_part(step, balancer, values_by_name, parsed.rows)
                if failure is not None:
                    return failure
        outputs = {name: values_by_name[value] for name, value in self.output_values.items()}
        if odd := [name for name, tensor in outputs.items() if tensor.shape[:1] != (parsed.rows,)]:
            problem = f"came without the {parsed.rows} rows of the request"
            return _bad_part_response(f"output {odd[0]}", problem)
        ports = [TensorPort(name, tensor.datatype, tensor.shape[1:]) for name, tensor in outputs.items()]
        values = [tensor.data for tensor in outputs.values()]
        text, json_bytes = await _run_inline_or_in_thread(
            sum(map(len, values)), encode_response, parsed, self.model.name, ports, values
        )
        return ClientResponse(200, content_headers(json_bytes), text)

    async def _parsed(self, headers: Mapping[str, str], body: bytes | bytearray) -> InferRequest:
        encoding, gives = headers.get("content-encoding", ""), list(self.output_values)
        length = parse_json_length(headers.get(LENGTH_HEADER))
        if is_quick_to_read(body, encoding, length):
            return parse_request(body, length, self.inputs, gives)
        return await self.readers.read(body, encoding, length, self.inputs, gives)

    async def _run_part(
        self, step: RouteStep, balancer: LoadBalancer, values: dict[str, RawTensor], rows: int
    ) -> ClientResponse | None:
        """Run a part and add its outputs to `values`; returns the response if the part failed.

        The part's server has other names for the values than the graph; they correspond by order.
        """
        ports = await balancer.ports(step.model, step.inputs)
        inputs = [
            replace(values[name], name=server_name)
            for name, server_name in zip(step.inputs, ports.inputs, strict=True)
        ]
        size = sum(len(tensor.data) for tensor in inputs)
        body, head_bytes = await _run_inline_or_in_thread(size, encode_request, inputs)
        max_bytes = max_response_bytes(ports.outputs, rows, text=False)
        response = await balancer.send(step.model, content_headers(head_bytes), body, max_bytes)
        if response.status != 200:
            return response
        length = response.headers.get(LENGTH_HEADER, "")
        json_bytes = int(length) if length.isdecimal() and len(length) < 13 else len(response.body)
        problem = f"gave an answer with more than {LARGEST_TEXT} bytes of JSON"
        if json_bytes > LARGEST_TEXT:
            return _bad_part_response(step.model, problem)
        try:
            outputs = decode_outputs(response.body, length or None)
        except ValueError as fault:
            return _bad_part_response(step.model, f"gave an answer that cannot be read: {fault}")
        if len(outputs) != len(step.outputs):
            problem = f"gave {len(outputs)} values, not {', '.join(step.outputs)}"
            return _bad_part_response(step.model, problem)
        values.update(zip(step.outputs, outputs, strict=True))
        return None


async def _run_inline_or_in_thread(size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `work`, in a thread if it handles INLINE_BYTES or more."""
    if size < INLINE_BYTES:
        return work(*args, **kwargs)
    return await asyncio.to_thread(work, *args, **kwargs)


def _most_rows(ports: list[TensorPort], size: int) -> int:
    """Most rows in a body of so many bytes: a number takes at least 2 in JSON (with a comma), or its own size."""
    if not ports or any(-1 in port.shape for port in ports):
        return MOST_ROWS
    least = sum(port.row_bytes // SIZES[port.datatype] * min(2, SIZES[port.datatype]) for port in ports)
    return min(MOST_ROWS, size // least) if least else MOST_ROWS


def _port(tensor: RoutedTensor) -> TensorPort:
    return TensorPort(tensor.name, tensor.datatype, tensor.shape[1:])


def _tensor_metadata(tensor: RoutedTensor) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}


def _bad_part_response(where: str, problem: str) -> ClientResponse:
    """The response if a part's server does not fit the routes."""
    return error_response(RequestFault(where, problem, REDEPLOY, 502))
