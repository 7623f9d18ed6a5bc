"""The Open Inference Protocol v2: paths, metadata, inference; over the HTTP of `wire`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torchsplit_core import __version__
from torchsplit_core.serving.engine import Engine
from torchsplit_core.serving.meters import Meters
from torchsplit_core.serving.settings import Limits
from torchsplit_core.serving.wire.bodies import headers_of, json_length, largest_body
from torchsplit_core.serving.wire.guard import HEALTH, Guard
from torchsplit_core.serving.wire.http import LARGE_BODY, Answer, Request, check_method, json_answer, refusal
from torchsplit_core.serving.wire.reader import Readers, quick
from torchsplit_core.serving.wire.tensors import (
    MOST_ROWS,
    Head,
    InferRequest,
    RequestFault,
    TensorPort,
    all_binary,
    parse_head,
    response_blocks,
    split_body,
)
from torchsplit_core.values import quoted, suggestion

EXTENSIONS = ["binary_tensor_data", "model_configuration", "statistics"]
INLINE_ANSWER = 256 * 1024
"""Bytes of outputs of which more are written as JSON in a thread, piece by piece."""
LONGEST_KEPT_HEAD, KEPT_HEADS = 2048, 256
"""Bytes of a request's JSON, and how many of them, that are kept read for each model."""
LENGTH = b"inference-header-content-length"


class Front:
    """What clients talk to, over a started engine: `wire.http` calls it."""

    def __init__(self, engine: Engine, meters: Meters, guard: Guard, limits: Limits) -> None:
        self.engine, self.meters, self.guard, self.limits = engine, meters, guard, limits
        self.readers = Readers(limits)
        self._models: dict[str, _Model] = {}
        self._paths = _Paths(engine, meters, guard)
        self._tasks: set[asyncio.Task[None]] = set()

    def admit(self, request: Request) -> int:
        """Bytes that the body may have. Raises RequestFault for who may not ask."""
        self.guard.check(request)
        model = self._model_of(request)
        if model is not None:
            return model.most
        self._paths.find(request)
        return LARGE_BODY

    def handle(self, request: Request) -> None:
        """Answer now, or once the engine has."""
        model = self._model_of(request)
        if model is None:
            request.reply(self._paths.find(request)())
            return
        inference = Inference(self, model, request)
        try:
            inference.begin()
        except RequestFault as fault:
            inference.refuse(fault)

    def refused(self, request: Request | None, fault: RequestFault) -> None:
        """Count what a limit has refused."""
        self.meters.refused(fault.reason or "request")

    def hold(self, task: asyncio.Task[None]) -> None:
        """The loop itself keeps no task alive."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _model_of(self, request: Request) -> _Model | None:
        """The model of a path of inference; None for every other path."""
        path = request.path
        if request.method != "POST" or not path.endswith("/infer"):
            return None
        if (found := self._models.get(path)) is not None:
            return found
        name = _named(path.removesuffix("/infer"))
        if name is None:
            return None
        known = self.engine.stations.get(name[0])
        if known is None or name[1] != "1" or name[0] not in self.engine.inputs:
            return None
        ports, outputs = self.engine.inputs[name[0]], self.engine.outputs[name[0]]
        found = self._models[path] = _Model(name[0], ports, outputs, largest_body(ports, self.limits))
        return found


def _named(path: str) -> tuple[str, str] | None:
    """Name and version of the model that a path is of."""
    match path.split("/"):
        case ["", "v2", "models", name]:
            return name, "1"
        case ["", "v2", "models", name, "versions", version]:
            return name, version
    return None


class _Model:
    """What inference asks of a model each time."""

    def __init__(
        self, name: str, ports: tuple[TensorPort, ...], outputs: tuple[TensorPort, ...], most: int
    ) -> None:
        self.name, self.ports, self.outputs, self.most = name, ports, outputs, most
        self.output_names = [port.name for port in outputs]
        self._heads: dict[tuple[bytes, int], Head] = {}

    def parse(self, body: bytes | bytearray, length: int | None) -> InferRequest:
        """As `parse_request`; JSON that says where bytes are is read once, for clients send the same again and again.

        Raises RequestFault.
        """
        text, following = split_body(body, length)
        if not following or len(text) > LONGEST_KEPT_HEAD:
            return parse_head(text, len(following), self.ports, self.output_names).request(following)
        key = bytes(text), len(following)
        head = self._heads.get(key)
        if head is None:
            head = parse_head(text, len(following), self.ports, self.output_names)
            if head.reusable:
                if len(self._heads) >= KEPT_HEADS:
                    self._heads.clear()
                self._heads[key] = head
        return head.request(following)


class Inference:
    """One request to a model, from its body to its answer."""

    __slots__ = ("begun", "front", "future", "model", "request", "wanted")

    def __init__(self, front: Front, model: _Model, request: Request) -> None:
        self.front, self.model, self.request = front, model, request
        self.begun = time.perf_counter()
        self.wanted: InferRequest | None = None
        self.future: asyncio.Future[Any] | None = None

    def begin(self) -> None:
        """Read the request here where that is quick, else beside the event loop. Raises RequestFault."""
        request, model = self.request, self.model
        request.gone = self.gone
        # Before it is read, which takes longer than to refuse it.
        self.front.engine.check_room(model.name)
        body, told = request.body, request.headers.get(LENGTH)
        encoding = request.header(b"content-encoding")
        length = json_length(None if told is None else told.decode("latin-1"))
        if quick(body, encoding, length):
            self.ask(model.parse(body, length))
        else:
            self.front.hold(asyncio.create_task(self._read(encoding, length)))

    async def _read(self, encoding: str, length: int | None) -> None:
        model, readers = self.model, self.front.readers
        try:
            self.ask(await readers.read(self.request.body, encoding, length, model.ports, model.output_names))
        except Exception as error:  # noqa: BLE001 - nobody else would tell the client
            self._failed(error)

    def ask(self, wanted: InferRequest) -> None:
        """Hand it to the engine. Raises RequestFault where that does not take it."""
        self.wanted = wanted
        self.future = self.front.engine.submit(self.model.name, wanted.rows, wanted.inputs, wanted.timeout_s)
        self.future.add_done_callback(self._answered)

    def _answered(self, future: asyncio.Future[Any]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is not None:
            self._failed(error)
            return
        found = future.result()
        assert self.wanted is not None
        if all_binary(self.wanted) or sum(map(len, found)) <= INLINE_ANSWER:
            try:
                self._reply(*response_blocks(self.wanted, self.model.name, self.model.outputs, found))
            except RequestFault as fault:
                self.refuse(fault)
        else:
            self.front.hold(asyncio.create_task(self._write(found)))

    async def _write(self, found: Sequence[Any]) -> None:
        assert self.wanted is not None
        try:
            self._reply(
                *await asyncio.to_thread(
                    response_blocks, self.wanted, self.model.name, self.model.outputs, found
                )
            )
        except Exception as error:  # noqa: BLE001 - nobody else would tell the client
            self._failed(error)

    def _reply(self, text: bytes, blocks: Sequence[bytes | memoryview]) -> None:
        self._count(200)
        headers = headers_of(len(text) if blocks else None)
        self.request.reply(Answer(200, (text, *blocks), tuple(headers.items())))

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, RequestFault):
            self.refuse(error)
        else:
            self._count(500)
            self.request.fail(error)

    def refuse(self, fault: RequestFault) -> None:
        """Answer that it is not served."""
        if fault.reason:
            self.front.meters.refused(fault.reason)
        self._count(fault.status)
        self.request.reply(refusal(fault))

    def gone(self) -> None:
        """Its client went away: nobody waits for the answer."""
        self._count(499)
        if self.future is not None:
            self.future.cancel()

    def _count(self, status: int) -> None:
        self.front.meters.answered(self.model.name, status, time.perf_counter() - self.begun)


class _Paths:
    """Everything but inference."""

    def __init__(self, engine: Engine, meters: Meters, guard: Guard) -> None:
        self.engine, self.meters, self.guard = engine, meters, guard
        get = ("GET",)
        self._fixed: dict[str, tuple[tuple[str, ...], Callable[[Request], Answer]]] = {
            "/v2": (get, self.server),
            HEALTH[0]: (get, self.live),
            HEALTH[1]: (get, self.ready),
            "/v2/repository/index": (("POST",), self.index),
            "/metrics": (get, self.metrics),
            "/torchsplit/state": (get, self.state),
            "/torchsplit/tallies": (("GET", "DELETE"), self.tallies),
        }
        self._of_model: dict[str, Callable[[str], Answer]] = {
            "": self.model,
            "ready": self.model_ready,
            "config": self.config,
            "stats": self.statistics,
        }

    def find(self, request: Request) -> Callable[[], Answer]:
        """What answers the request. Raises RequestFault for a path or method that there is not."""
        path = request.path.rstrip("/") or "/"
        if path in self._fixed:
            methods, found = self._fixed[path]
            check_method(request, *methods)
            return partial(found, request)
        if path.startswith("/torchsplit/examples/"):
            name = path.removeprefix("/torchsplit/examples/")
            check_method(request, "GET")
            self._check_known(name, "1", started=True)
            return partial(self.example, name)
        named, verb = _named(path), ""
        if named is None:
            base, _, verb = path.rpartition("/")
            named = _named(base)
        if named is None or verb not in (*self._of_model, "infer"):
            raise RequestFault("", f"unknown path {quoted(request.path)}", "Ask for /v2.", 404)
        check_method(request, "POST" if verb == "infer" else "GET")
        self._check_known(*named, started=verb not in ("ready", "stats"))
        return partial(self._of_model[verb], named[0])

    def _check_known(self, name: str, version: str, *, started: bool) -> None:
        """Raises RequestFault: 404 where there is no such model, 503 before it has `started`."""
        stations = self.engine.stations
        if name not in stations:
            raise RequestFault("", f"unknown model {quoted(name)}", suggestion(name, stations, "models"), 404)
        if version != "1":
            raise RequestFault(name, f"has no version {quoted(version)}", "Ask for version 1.", 404)
        if started and name not in self.engine.inputs:
            raise RequestFault(name, "is not ready yet", "Ask again later.", 503)

    def server(self, request: Request) -> Answer:
        return json_answer({"name": "torchsplit", "version": __version__, "extensions": EXTENSIONS})

    def live(self, request: Request) -> Answer:
        return json_answer({"live": True})

    def ready(self, request: Request) -> Answer:
        ready = not self.engine.draining and all(map(self.engine.ready, self.engine.stations))
        return json_answer({"ready": ready}, 200 if ready else 503)

    def model_ready(self, name: str) -> Answer:
        ready = self.engine.ready(name)
        return json_answer({"name": name, "ready": ready}, 200 if ready else 503)

    def model(self, name: str) -> Answer:
        return json_answer(
            {
                "name": name,
                "versions": ["1"],
                "platform": "torchsplit",
                "inputs": [port.told() for port in self.engine.inputs[name]],
                "outputs": [port.told() for port in self.engine.outputs[name]],
            }
        )

    def config(self, name: str) -> Answer:
        """As Triton's model configuration has it, as far as it says something here."""
        stations = self.engine.stations[name]
        return json_answer(
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

    def statistics(self, name: str) -> Answer:
        servers = {seat.spec.server for seat in self.engine.stations[name][0].seats}
        found = [self.meters.tallies[server] for server in servers]
        told = {
            "name": name,
            "version": "1",
            "inference_count": sum(tally.rows for tally in found),
            "execution_count": sum(tally.batches for tally in found),
        }
        return json_answer({"model_stats": [told]})

    def index(self, request: Request) -> Answer:
        return json_answer(
            [
                {"name": name, "version": "1", "state": "READY" if self.engine.ready(name) else "UNAVAILABLE"}
                for name in self.engine.stations
            ]
        )

    def metrics(self, request: Request) -> Answer:
        waiting = {
            (name, station.model.stages[station.position]): station.queue.rows
            for name, stations in self.engine.stations.items()
            for station in stations
        }
        headers = (("content-type", "text/plain; version=0.0.4; charset=utf-8"),)
        return Answer(200, (self.meters.text(waiting),), headers)

    def state(self, request: Request) -> Answer:
        return json_answer(self.engine.state())

    def example(self, name: str) -> Answer:
        """One row of each input of a model, in base64."""
        rows = self.engine.stations[name][0].seats[0].ports["example"]
        ports = self.engine.inputs[name]
        told = [
            {**port.told(), "shape": [1, *port.shape], "bytes": row}
            for port, row in zip(ports, rows, strict=True)
        ]
        return json_answer({"inputs": told})

    def tallies(self, request: Request) -> Answer:
        """The times of every batch since the last DELETE: what `measure` reads."""
        told = {name: tally.told() for name, tally in self.meters.tallies.items()}
        if request.method == "DELETE":
            if not self.guard.has_token:
                problem = "are dropped only for who shows a token, and this server was started without one"
                raise RequestFault("the tallies", problem, "Serve with --token-file FILE.", 403)
            self.meters.reset()
        return json_answer(told)


def _configured(ports: Sequence[TensorPort]) -> list[dict[str, Any]]:
    return [
        {"name": port.name, "data_type": f"TYPE_{port.datatype}", "dims": list(port.shape)} for port in ports
    ]
