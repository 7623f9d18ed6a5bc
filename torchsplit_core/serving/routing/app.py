"""One address for models whose slices are servers of their own: Open Inference Protocol v2 in front of it.

A request for a whole model goes on as it came. One for a cut model goes through its parts in a row, each part's
values in binary form, and comes back as its client asked. What waits holds no thread.
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

from torchsplit_core.serving.routing.calls import LARGEST_TEXT, REDEPLOY, Balancer, most_bytes, refusal
from torchsplit_core.serving.routing.connections import Answer
from torchsplit_core.serving.settings import Access, Limits
from torchsplit_core.serving.wire import http
from torchsplit_core.serving.wire.asking import Tensor, outputs_of, request_of
from torchsplit_core.serving.wire.bodies import headers_of, json_length, largest_body
from torchsplit_core.serving.wire.guard import HEALTH, Guard
from torchsplit_core.serving.wire.http import Request, json_answer
from torchsplit_core.serving.wire.reader import Readers, quick
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
FIXED = {"/v2": "server", HEALTH[0]: "live", HEALTH[1]: "ready", "/metrics": "metrics"}
"""Paths that are of no model, and what is asked by them."""
INLINE_BYTES = 256 * 1024
"""More is written in a thread, so that other requests are not held up."""

P = ParamSpec("P")
T = TypeVar("T")


class Router:
    """What clients talk to: `wire.http` calls it. To be made in the event loop.

    An answer that takes longer than `timeout_s`, through all parts, is given up (504). The token that clients show is
    the one that the servers are shown.
    """

    def __init__(self, routes: Routes, timeout_s: float, access: Access, limits: Limits) -> None:
        self.guard, self.readers = Guard(access), Readers(limits)
        self.models = {
            model.name: _Routed(model, timeout_s, limits, self.readers, access.token)
            for model in routes.models
        }
        self._registry = CollectorRegistry()
        self._count = Counter(
            "torchsplit_route_requests",
            "Answers by model and status",
            ["model", "code"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "torchsplit_route_seconds", "Seconds from request to answer", ["model"], registry=self._registry
        )
        self._refused = Counter(
            "torchsplit_route_refused",
            "Requests and connections that a limit refused, by the limit",
            ["reason"],
            registry=self._registry,
        )
        self._tasks: set[asyncio.Task[None]] = set()

    def admit(self, request: Request) -> int:
        """Bytes that the body may have. Raises RequestFault for who may not ask, and for no such path."""
        self.guard.check(request)
        model, verb = self._find(request)
        return model.most if model is not None and verb == "infer" else http.LARGE_BODY

    def refused(self, request: Request | None, fault: RequestFault) -> None:
        """Count what a limit has refused."""
        self._refused.labels(fault.reason or "request").inc()

    def handle(self, request: Request) -> None:
        """Answer now, or once the servers have."""
        model, verb = self._find(request)
        if model is not None and verb == "infer":
            self._run(request, self._infer(model, request))
        elif verb == "ready":
            self._run(request, self._ready(request, list(self.models.values()) if model is None else [model]))
        elif model is not None:
            request.reply(json_answer(model.metadata()))
        elif verb == "metrics":
            kind = (("content-type", CONTENT_TYPE_LATEST),)
            request.reply(http.Answer(200, (generate_latest(self._registry),), kind))
        elif verb == "live":
            request.reply(json_answer({"live": True}))
        else:
            extensions = ["binary_tensor_data"]
            request.reply(json_answer({"name": "torchsplit", "version": "1", "extensions": extensions}))

    def _find(self, request: Request) -> tuple[_Routed | None, str]:
        """The model that a path is of, and what is asked. Raises RequestFault for what there is not."""
        path = request.path
        if path in FIXED:
            http.check_method(request, "GET")
            return None, FIXED[path]
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
        http.check_method(request, "POST" if verb == "infer" else "GET")
        return self.models[name], verb

    def _run(self, request: Request, work: Coroutine[Any, Any, None]) -> None:
        """Do what takes time as a task that ends where the client goes away."""
        task = asyncio.create_task(work)
        request.gone = partial(_cancel, task)
        self._tasks.add(task)

        def over(done: asyncio.Task[None]) -> None:
            self._tasks.discard(done)
            if not done.cancelled() and (error := done.exception()) is not None:
                request.fail(error)

        task.add_done_callback(over)

    async def _infer(self, model: _Routed, request: Request) -> None:
        began, status = time.perf_counter(), 500
        try:
            headers = {
                name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers.items()
            }
            answer = await model.answer(headers, request.body)
            status = answer.status
            kept = tuple((name, value) for name, value in answer.headers.items() if name in _KEPT)
            request.reply(http.Answer(status, (answer.body,), kept))
        except asyncio.CancelledError:
            status = 499
            raise
        finally:
            self._count.labels(model.model.name, str(status)).inc()
            self._seconds.labels(model.model.name).observe(time.perf_counter() - began)

    async def _ready(self, request: Request, asked: list[_Routed]) -> None:
        for model, there in zip(asked, await asyncio.gather(*(one.ready() for one in asked)), strict=True):
            if not there:
                problem = "has a part without a server that is ready"
                raise RequestFault(model.model.name, problem, "Ask again later.", 503)
        request.reply(json_answer({"ready": True}))


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


_KEPT = ("content-type", LENGTH_HEADER, "content-encoding", "retry-after")


class _Routed:
    """A model and the servers of its parts."""

    def __init__(
        self, model: RoutedModel, timeout_s: float, limits: Limits, readers: Readers, token: str | None
    ) -> None:
        self.model, self.timeout_s, self.readers = model, timeout_s, readers
        self.parts = [(step, Balancer(step.servers, token)) for step in model.steps]
        self.takes = list(map(_port, model.inputs))
        self.most = largest_body(self.takes, limits)
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

    async def answer(self, headers: Mapping[str, str], body: bytes | bytearray) -> Answer:
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

    async def _whole(self, headers: Mapping[str, str], body: bytes | bytearray) -> Answer:
        step, balancer = self.parts[0]
        kept = {name: value for name, value in headers.items() if name in _KEPT or name == "accept-encoding"}
        rows = MOST_ROWS if "content-encoding" in headers else _most_rows(self.takes, len(body))
        most = most_bytes(list(map(_port, self.model.outputs)), rows, text=True)
        return await balancer.post(step.model, kept, body, most)

    async def _cut(self, headers: Mapping[str, str], body: bytes | bytearray) -> Answer:
        asked = await self._parsed(headers, body)
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

    async def _parsed(self, headers: Mapping[str, str], body: bytes | bytearray) -> InferRequest:
        encoding, gives = headers.get("content-encoding", ""), list(self.gives)
        length = json_length(headers.get(LENGTH_HEADER))
        if quick(body, encoding, length):
            return parse_request(body, length, self.takes, gives)
        return await self.readers.read(body, encoding, length, self.takes, gives)

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


def _shown(tensor: RoutedTensor) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}


def _wrong(where: str, problem: str) -> Answer:
    """What a server of a part gave that the routes do not know."""
    return refusal(RequestFault(where, problem, REDEPLOY, 502))
