"""The HTTP frontend: Open Inference Protocol v2, metrics and state."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from torchsplit_core import __version__
from torchsplit_core.serving.engine import Engine
from torchsplit_core.serving.metrics import ServerMetrics
from torchsplit_core.serving.protocol.access_guard import HEALTH, AccessGuard
from torchsplit_core.serving.protocol.body_readers import BodyReaders, is_quick_to_read
from torchsplit_core.serving.protocol.http_body import content_headers, max_body_bytes, parse_json_length
from torchsplit_core.serving.protocol.http_server import (
    LARGE_BODY,
    HttpResponse,
    Request,
    check_method,
    error_response,
    json_response,
)
from torchsplit_core.serving.protocol.tensors import (
    MOST_ROWS,
    InferRequest,
    RequestFault,
    TensorPort,
    all_binary,
    parse_head,
    response_blocks,
    split_body,
)
from torchsplit_core.serving.settings import RequestLimits
from torchsplit_core.values import quoted, suggestion

EXTENSIONS = ["binary_tensor_data", "model_configuration", "statistics"]
INLINE_RESPONSE_BYTES = 256 * 1024
"""Outputs with more bytes are written as JSON in a thread."""
LONGEST_CACHED_HEAD, MAX_CACHED_HEADS = 2048, 256
"""Longest request head that is cached parsed, in bytes; cached heads per model."""
LENGTH_HEADER = b"inference-header-content-length"


class Frontend:
    """The application that `HttpServer` calls, over an engine."""

    def __init__(
        self, engine: Engine, metrics: ServerMetrics, guard: AccessGuard, limits: RequestLimits
    ) -> None:
        self.engine, self.metrics, self.guard, self.limits = engine, metrics, guard, limits
        self.readers = BodyReaders(limits)
        self._models: dict[str, _ModelEndpoint] = {}
        self._control = _ControlPaths(engine, metrics, guard)
        self._tasks: set[asyncio.Task[None]] = set()

    def admit(self, request: Request) -> int:
        """Largest allowed body in bytes. Raises RequestFault if access is denied or the path is unknown."""
        self.guard.check(request)
        model = self._model_of(request)
        if model is not None:
            return model.max_body_bytes
        self._control.resolve(request)
        return LARGE_BODY

    def handle(self, request: Request) -> None:
        """Reply now, or once the engine has a result."""
        model = self._model_of(request)
        if model is None:
            request.reply(self._control.resolve(request)())
            return
        inference = Inference(self, model, request)
        try:
            inference.begin()
        except RequestFault as fault:
            inference.reject(fault)

    def refused(self, request: Request | None, fault: RequestFault) -> None:
        """Count a request or connection that a limit rejected."""
        self.metrics.count_refusal(fault.reason or "request")

    def keep_task(self, task: asyncio.Task[None]) -> None:
        """Hold a reference to the task until it is done; the event loop holds none."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _model_of(self, request: Request) -> _ModelEndpoint | None:
        """The model of an inference path; None for every other path."""
        path = request.path
        if request.method != "POST" or not path.endswith("/infer"):
            return None
        if (endpoint := self._models.get(path)) is not None:
            return endpoint
        name_version = _parse_model_path(path.removesuffix("/infer"))
        if name_version is None:
            return None
        stages = self.engine.stages.get(name_version[0])
        if stages is None or name_version[1] != "1" or name_version[0] not in self.engine.inputs:
            return None
        ports, outputs = self.engine.inputs[name_version[0]], self.engine.outputs[name_version[0]]
        endpoint = self._models[path] = _ModelEndpoint(
            name_version[0], ports, outputs, max_body_bytes(ports, self.limits)
        )
        return endpoint


def _parse_model_path(path: str) -> tuple[str, str] | None:
    """Model name and version in a path."""
    match path.split("/"):
        case ["", "v2", "models", name]:
            return name, "1"
        case ["", "v2", "models", name, "versions", version]:
            return name, version
    return None


class _ModelEndpoint:
    """What inference needs of a model for every request."""

    def __init__(
        self, name: str, ports: tuple[TensorPort, ...], outputs: tuple[TensorPort, ...], max_bytes: int
    ) -> None:
        self.name, self.ports, self.outputs, self.max_body_bytes = name, ports, outputs, max_bytes
        self.output_names = [port.name for port in outputs]
        self._heads: dict[tuple[bytes, int], InferRequest] = {}

    def parse(self, body: bytes | bytearray, length: int | None) -> InferRequest:
        """As `parse_request`, with a cache of heads: clients that send tensors as bytes repeat their head.

        Raises RequestFault.
        """
        text, following = split_body(body, length)
        if not following or len(text) > LONGEST_CACHED_HEAD:
            return parse_head(text, len(following), self.ports, self.output_names).with_payload(following)
        key = bytes(text), len(following)
        head = self._heads.get(key)
        if head is None:
            head = parse_head(text, len(following), self.ports, self.output_names)
            if head.reusable:
                if len(self._heads) >= MAX_CACHED_HEADS:
                    self._heads.clear()
                self._heads[key] = head
        return head.with_payload(following)


class Inference:
    """One inference request, from its body to its response."""

    __slots__ = ("begun", "front", "future", "model", "request", "wanted")

    def __init__(self, front: Frontend, model: _ModelEndpoint, request: Request) -> None:
        self.front, self.model, self.request = front, model, request
        self.begun = time.perf_counter()
        self.wanted: InferRequest | None = None
        self.future: asyncio.Future[Any] | None = None

    def begin(self) -> None:
        """Parse the request here if that is quick, else in another process. Raises RequestFault."""
        request, model = self.request, self.model
        request.gone = self.on_disconnect
        # Reject before parsing, which takes longer.
        self.front.engine.check_capacity(model.name)
        body, length_header = request.body, request.headers.get(LENGTH_HEADER)
        encoding = request.header(b"content-encoding")
        length = parse_json_length(None if length_header is None else length_header.decode("latin-1"))
        if is_quick_to_read(body, encoding, length):
            self.submit(model.parse(body, length))
        else:
            self._spawn(self._read(encoding, length))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        async def reported() -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001 - the client gets a response for every error
                self._fail(error)

        self.front.keep_task(asyncio.create_task(reported()))

    async def _read(self, encoding: str, length: int | None) -> None:
        model, body = self.model, self.request.body
        reading = self.front.readers.read(body, encoding, length, model.ports, model.output_names)
        self.submit(await reading)

    def submit(self, parsed: InferRequest) -> None:
        """Pass the request to the engine. Raises RequestFault if the engine does not take it."""
        self.wanted = parsed
        self.future = self.front.engine.submit(self.model.name, parsed.rows, parsed.inputs, parsed.timeout_s)
        self.future.add_done_callback(self._on_result)

    def _on_result(self, future: asyncio.Future[Any]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is not None:
            self._fail(error)
            return
        outputs = future.result()
        assert self.wanted is not None
        encode = partial(response_blocks, self.wanted, self.model.name, self.model.outputs, outputs)
        if all_binary(self.wanted) or sum(map(len, outputs)) <= INLINE_RESPONSE_BYTES:
            try:
                self._reply(*encode())
            except RequestFault as fault:
                self.reject(fault)
        else:
            self._spawn(self._write(encode))

    async def _write(self, encode: Callable[[], tuple[bytes, list[bytes | memoryview]]]) -> None:
        self._reply(*await asyncio.to_thread(encode))

    def _reply(self, text: bytes, blocks: Sequence[bytes | memoryview]) -> None:
        self._observe(200)
        headers = content_headers(len(text) if blocks else None)
        self.request.reply(HttpResponse(200, (text, *blocks), tuple(headers.items())))

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, RequestFault):
            self.reject(error)
        else:
            self._observe(500)
            self.request.fail(error)

    def reject(self, fault: RequestFault) -> None:
        """Reply with a fault."""
        if fault.reason:
            self.front.metrics.count_refusal(fault.reason)
        self._observe(fault.status)
        self.request.reply(error_response(fault))

    def on_disconnect(self) -> None:
        """Cancel the request of a client that disconnected."""
        self._observe(499)
        if self.future is not None:
            self.future.cancel()

    def _observe(self, status: int) -> None:
        self.front.metrics.observe_response(self.model.name, status, time.perf_counter() - self.begun)


class _ControlPaths:
    """Every path but inference."""

    def __init__(self, engine: Engine, server_metrics: ServerMetrics, guard: AccessGuard) -> None:
        self.engine, self.server_metrics, self.guard = engine, server_metrics, guard
        get = ("GET",)
        self._fixed: dict[str, tuple[tuple[str, ...], Callable[[Request], HttpResponse]]] = {
            "/v2": (get, self.server),
            HEALTH[0]: (get, self.live),
            HEALTH[1]: (get, self.ready),
            "/v2/repository/index": (("POST",), self.index),
            "/metrics": (get, self.metrics),
            "/torchsplit/state": (get, self.state),
            "/torchsplit/tallies": (("GET", "DELETE"), self.tallies),
        }
        self._of_model: dict[str, Callable[[str], HttpResponse]] = {
            "": self.model,
            "ready": self.model_ready,
            "config": self.config,
            "stats": self.statistics,
        }

    def resolve(self, request: Request) -> Callable[[], HttpResponse]:
        """The handler of a request. Raises RequestFault for an unknown path, model or method."""
        path = request.path.rstrip("/") or "/"
        if path in self._fixed:
            methods, handler = self._fixed[path]
            check_method(request, *methods)
            return partial(handler, request)
        if path.startswith("/torchsplit/examples/"):
            name = path.removeprefix("/torchsplit/examples/")
            check_method(request, "GET")
            self._check_known(name, "1", started=True)
            return partial(self.example, name)
        name_version, verb = _parse_model_path(path), ""
        if name_version is None:
            base, _, verb = path.rpartition("/")
            name_version = _parse_model_path(base)
        if name_version is None or verb not in (*self._of_model, "infer"):
            raise RequestFault("", f"unknown path {quoted(request.path)}", "Ask for /v2.", 404)
        check_method(request, "POST" if verb == "infer" else "GET")
        self._check_known(*name_version, started=verb not in ("ready", "stats"))
        return partial(self._of_model[verb], name_version[0])

    def _check_known(self, name: str, version: str, *, started: bool) -> None:
        """Raises RequestFault: 404 for an unknown model or version, 503 for a model that has to be `started`."""
        stages = self.engine.stages
        if name not in stages:
            raise RequestFault("", f"unknown model {quoted(name)}", suggestion(name, stages, "models"), 404)
        if version != "1":
            raise RequestFault(name, f"has no version {quoted(version)}", "Ask for version 1.", 404)
        if started and name not in self.engine.inputs:
            raise RequestFault(name, "is not ready yet", "Ask again later.", 503)

    def server(self, request: Request) -> HttpResponse:
        return json_response({"name": "torchsplit", "version": __version__, "extensions": EXTENSIONS})

    def live(self, request: Request) -> HttpResponse:
        return json_response({"live": True})

    def ready(self, request: Request) -> HttpResponse:
        ready = not self.engine.draining and all(map(self.engine.ready, self.engine.stages))
        return json_response({"ready": ready}, 200 if ready else 503)

    def model_ready(self, name: str) -> HttpResponse:
        ready = self.engine.ready(name)
        return json_response({"name": name, "ready": ready}, 200 if ready else 503)

    def model(self, name: str) -> HttpResponse:
        return json_response(
            {
                "name": name,
                "versions": ["1"],
                "platform": "torchsplit",
                "inputs": [port.metadata() for port in self.engine.inputs[name]],
                "outputs": [port.metadata() for port in self.engine.outputs[name]],
            }
        )

    def config(self, name: str) -> HttpResponse:
        """The fields of Triton's model configuration that apply here."""
        stages = self.engine.stages[name]
        return json_response(
            {
                "name": name,
                "platform": "torchsplit",
                "max_batch_size": MOST_ROWS,
                "input": _config_tensors(self.engine.inputs[name]),
                "output": _config_tensors(self.engine.outputs[name]),
                "dynamic_batching": {
                    "preferred_batch_size": sorted({slot.spec.max_batch for slot in stages[0].slots}),
                    "max_queue_delay_microseconds": round(stages[0].model.max_wait_ms * 1e3),
                },
            }
        )

    def statistics(self, name: str) -> HttpResponse:
        servers = {slot.spec.server for slot in self.engine.stages[name][0].slots}
        stats = [self.server_metrics.batch_stats[server] for server in servers]
        content = {
            "name": name,
            "version": "1",
            "inference_count": sum(server_stats.rows for server_stats in stats),
            "execution_count": sum(server_stats.batches for server_stats in stats),
        }
        return json_response({"model_stats": [content]})

    def index(self, request: Request) -> HttpResponse:
        return json_response(
            [
                {"name": name, "version": "1", "state": "READY" if self.engine.ready(name) else "UNAVAILABLE"}
                for name in self.engine.stages
            ]
        )

    def metrics(self, request: Request) -> HttpResponse:
        waiting = {
            (name, stage.model.stages[stage.position]): stage.queue.rows
            for name, stages in self.engine.stages.items()
            for stage in stages
        }
        headers = (("content-type", "text/plain; version=0.0.4; charset=utf-8"),)
        return HttpResponse(200, (self.server_metrics.exposition(waiting),), headers)

    def state(self, request: Request) -> HttpResponse:
        return json_response(self.engine.state())

    def example(self, name: str) -> HttpResponse:
        """One row of each input of a model, in base64."""
        rows = self.engine.stages[name][0].slots[0].ports["example"]
        ports = self.engine.inputs[name]
        inputs = [
            {**port.metadata(), "shape": [1, *port.shape], "bytes": row}
            for port, row in zip(ports, rows, strict=True)
        ]
        return json_response({"inputs": inputs})

    def tallies(self, request: Request) -> HttpResponse:
        """The statistics of batches since the last DELETE, for `measure`."""
        content = {name: stats.to_json() for name, stats in self.server_metrics.batch_stats.items()}
        if request.method == "DELETE":
            if not self.guard.has_token:
                problem = "are dropped only for who shows a token, and this server was started without one"
                raise RequestFault("the tallies", problem, "Serve with --token-file FILE.", 403)
            self.server_metrics.reset()
        return json_response(content)


def _config_tensors(ports: Sequence[TensorPort]) -> list[dict[str, Any]]:
    return [
        {"name": port.name, "data_type": f"TYPE_{port.datatype}", "dims": list(port.shape)} for port in ports
    ]
