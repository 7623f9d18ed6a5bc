"""The Open Inference Protocol v2 over HTTP: paths, metadata, inference. Starlette routes them, uvicorn listens."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from torchsplit_core import __version__
from torchsplit_core.serving.engine import Engine
from torchsplit_core.serving.meters import Meters
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
    RequestFault,
    TensorPort,
    parse_request,
    response,
)
from torchsplit_core.values import quoted, suggestion

EXTENSIONS = ["binary_tensor_data", "model_configuration", "statistics"]
Endpoint = Callable[[Request], Awaitable[Response]]
INLINE_BYTES = 256 * 1024
"""A larger body is parsed beside the event loop, so that other requests are not held up."""


def make_app(engine: Engine, meters: Meters) -> Starlette:
    """The application over a started engine."""
    paths = _Paths(engine, meters)
    infer = Infer(engine, meters)
    versioned = ("/v2/models/{name}", "/v2/models/{name}/versions/{version}")
    routes = [
        Route("/v2", paths.server),
        Route("/v2/health/live", paths.live),
        Route("/v2/health/ready", paths.ready),
        Route("/v2/repository/index", paths.index, methods=["POST"]),
        Route("/metrics", paths.metrics),
        Route("/torchsplit/state", paths.state),
        Route("/torchsplit/examples/{name}", paths.of_model(paths.example)),
        Route("/torchsplit/tallies", paths.tallies, methods=["GET", "DELETE"]),
    ]
    for path in versioned:
        routes += [
            Route(path, paths.of_model(paths.model)),
            Route(f"{path}/ready", paths.of_model(paths.model_ready, started=False)),
            Route(f"{path}/config", paths.of_model(paths.config)),
            Route(f"{path}/stats", paths.of_model(paths.statistics, started=False)),
            Route(f"{path}/infer", infer, methods=["POST"]),
        ]
    return Starlette(routes=routes, exception_handlers={404: _no_path, 405: _no_method})


async def _no_path(request: Request, error: Exception) -> Response:
    fault = RequestFault("", f"unknown path {quoted(request.url.path)}", "Ask for /v2.", 404)
    return _told(fault)


async def _no_method(request: Request, error: Exception) -> Response:
    problem = f"does not take {request.method}"
    allowed = getattr(error, "headers", None) or {}
    fault = RequestFault(request.url.path, problem, f"Send {allowed.get('Allow', 'another method')}.", 405)
    return _told(fault, allowed)


def _told(fault: RequestFault, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse({"error": str(fault)}, fault.status, headers)


class _Paths:
    """Everything but inference."""

    def __init__(self, engine: Engine, meters: Meters) -> None:
        self.engine, self.meters = engine, meters

    async def server(self, request: Request) -> Response:
        return JSONResponse({"name": "torchsplit", "version": __version__, "extensions": EXTENSIONS})

    async def live(self, request: Request) -> Response:
        return JSONResponse({"live": True})

    async def ready(self, request: Request) -> Response:
        ready = not self.engine.draining and all(map(self.engine.ready, self.engine.stations))
        return JSONResponse({"ready": ready}, 200 if ready else 503)

    def of_model(self, answer: Callable[[str], Response], *, started: bool = True) -> Endpoint:
        """The answer about the model that a path names: 404 where there is none of it, 503 before it has `started`."""

        async def endpoint(request: Request) -> Response:
            name = request.path_params["name"]
            try:
                check_known(self.engine, request.path_params)
                if started and name not in self.engine.inputs:
                    raise RequestFault(name, "is not ready yet", "Ask again later.", 503)
            except RequestFault as fault:
                return _told(fault)
            return answer(name)

        return endpoint

    def model_ready(self, name: str) -> Response:
        ready = self.engine.ready(name)
        return JSONResponse({"name": name, "ready": ready}, 200 if ready else 503)

    def model(self, name: str) -> Response:
        return JSONResponse(
            {
                "name": name,
                "versions": ["1"],
                "platform": "torchsplit",
                "inputs": [port.told() for port in self.engine.inputs[name]],
                "outputs": [port.told() for port in self.engine.outputs[name]],
            }
        )

    def config(self, name: str) -> Response:
        """As Triton's model configuration has it, as far as it says something here."""
        stations = self.engine.stations[name]
        return JSONResponse(
            {
                "name": name,
                "platform": "torchsplit",
                "max_batch_size": MOST_ROWS,
                "input": _configured(self.engine.inputs[name]),
                "output": _configured(self.engine.outputs[name]),
                "dynamic_batching": {
                    "preferred_batch_size": sorted({seat.spec.max_batch for seat in stations[0].seats}),
                    "max_queue_delay_microseconds": round(stations[0].model.max_wait_ms * 1e3),
                },
            }
        )

    def statistics(self, name: str) -> Response:
        servers = {seat.spec.server for seat in self.engine.stations[name][0].seats}
        found = [self.meters.tallies[server] for server in servers]
        told = {
            "name": name,
            "version": "1",
            "inference_count": sum(tally.rows for tally in found),
            "execution_count": sum(tally.batches for tally in found),
        }
        return JSONResponse({"model_stats": [told]})

    async def index(self, request: Request) -> Response:
        return JSONResponse(
            [
                {"name": name, "version": "1", "state": "READY" if self.engine.ready(name) else "UNAVAILABLE"}
                for name in self.engine.stations
            ]
        )

    async def metrics(self, request: Request) -> Response:
        waiting = {
            (name, station.model.stages[station.position]): station.queue.rows
            for name, stations in self.engine.stations.items()
            for station in stations
        }
        return Response(self.meters.text(waiting), media_type="text/plain; version=0.0.4")

    async def state(self, request: Request) -> Response:
        return JSONResponse(self.engine.state())

    def example(self, name: str) -> Response:
        """One row of each input of a model, in base64."""
        rows = self.engine.stations[name][0].seats[0].ports["example"]
        ports = self.engine.inputs[name]
        told = [
            {**port.told(), "shape": [1, *port.shape], "bytes": row}
            for port, row in zip(ports, rows, strict=True)
        ]
        return JSONResponse({"inputs": told})

    async def tallies(self, request: Request) -> Response:
        """The times of every batch since the last DELETE: what `measure` reads."""
        told = {name: tally.told() for name, tally in self.meters.tallies.items()}
        if request.method == "DELETE":
            self.meters.reset()
        return JSONResponse(told)


def check_known(engine: Engine, parameters: dict[str, str]) -> None:
    """Raises RequestFault where the path names no model that is served."""
    name, version = parameters["name"], parameters.get("version", "1")
    if name not in engine.stations:
        raise RequestFault(
            "", f"unknown model {quoted(name)}", suggestion(name, engine.stations, "models"), 404
        )
    if version != "1":
        raise RequestFault(name, f"has no version {quoted(version)}", "Ask for version 1.", 404)


def _configured(ports: Sequence[TensorPort]) -> list[dict[str, Any]]:
    return [
        {"name": port.name, "data_type": f"TYPE_{port.datatype}", "dims": list(port.shape)} for port in ports
    ]


class Infer:
    """Inference as an application of its own: what happens a thousand times a second."""

    def __init__(self, engine: Engine, meters: Meters) -> None:
        self.engine, self.meters = engine, meters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begin = time.perf_counter()
        name = scope["path_params"]["name"]
        status, body, json_bytes = 500, b"", None
        try:
            check_known(self.engine, scope["path_params"])
            body, json_bytes = await self._answer(name, scope, receive)
            status = 200
        except RequestFault as refused:
            status, body = refused.status, json.dumps({"error": str(refused)}).encode()
        except Gone:
            status = 499
        # A name that is not served would be a series of its own for whatever a client writes.
        if name in self.engine.stations:
            self.meters.answered(name, status, time.perf_counter() - begin)
        if status == 499:
            return
        headers = {**headers_of(json_bytes), "content-length": str(len(body))}
        if status in (429, 503):
            headers["retry-after"] = "1"
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": pairs})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, name: str, scope: Scope, receive: Receive) -> tuple[bytes, int | None]:
        """The body of an answer and the length of its JSON. Raises RequestFault or Gone."""
        self.engine.check_open(name)
        headers = Headers(scope=scope)
        ports, outputs = self.engine.inputs[name], self.engine.outputs[name]
        names = [port.name for port in outputs]
        most = largest_body(ports)
        body = unpacked(await received(headers, receive, most), headers.get("content-encoding", ""), most)
        length = json_length(headers.get(LENGTH_HEADER))
        if len(body) > INLINE_BYTES:
            request = await asyncio.to_thread(parse_request, body, length, ports, names)
        else:
            request = parse_request(body, length, ports, names)
        inference = asyncio.ensure_future(
            self.engine.infer(name, request.rows, request.inputs, request.timeout_s)
        )
        leaving = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait((inference, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not inference.done():
                raise Gone
            found = inference.result()
        finally:
            inference.cancel()
            leaving.cancel()
        if sum(map(len, found)) > INLINE_BYTES:
            return await asyncio.to_thread(response, request, name, outputs, found)
        return response(request, name, outputs, found)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
