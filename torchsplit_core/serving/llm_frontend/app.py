"""The OpenAI-compatible endpoint over a plan's engines: each request goes to the engine of its model with the fewest.

Requests in flight here are those that wait and run there, since nobody else asks the engines. Of equals the first in
the plan's order is taken, as in the simulation. An engine that cannot be reached gets no more requests until it
runs again; one that it had not begun to answer goes to another.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import urlsplit

from torchsplit_core.serving.llm_engine.app import (
    CHATS,
    COMPLETIONS,
    EVENTS,
    MOST_BODY_BYTES,
    json_body,
)
from torchsplit_core.serving.llm_frontend.engine_pool import StartedEngine
from torchsplit_core.serving.protocol import access_guard
from torchsplit_core.serving.protocol.access_guard import AccessGuard
from torchsplit_core.serving.protocol.http_client import ClientConnection, ClientResponse, Result
from torchsplit_core.serving.protocol.http_server import HttpResponse, Request, check_method, json_response
from torchsplit_core.serving.protocol.tensors import RequestFault
from torchsplit_core.values import suggestion
from torchsplit_core.values.errors import json_words

MODELS, HEALTH, STEPS = "/v1/models", "/health", "/torchsplit/steps"
READY = access_guard.HEALTH[1]
CONNECT_S = 3.0


class EngineLink:
    """An engine as the front sees it: requests in flight, connections that are free, and whether it is lost."""

    def __init__(self, engine: StartedEngine) -> None:
        self.in_flight = 0
        self._free: list[ClientConnection] = []
        self.renew(engine)

    def renew(self, engine: StartedEngine) -> None:
        """Ask this engine from now on."""
        self.engine, self.lost = engine, False
        self._free.clear()
        address = urlsplit(engine.process.url)
        self._host, self._port = str(address.hostname), int(address.port or 80)

    async def connect(self) -> ClientConnection:
        """A free connection, else a new one. Raises OSError where the engine takes none."""
        while self._free:
            connection = self._free.pop()
            if connection.reusable:
                return connection
        async with asyncio.timeout(CONNECT_S):
            _, connection = await asyncio.get_running_loop().create_connection(
                ClientConnection, self._host, self._port
            )
        return connection

    def release(self, connection: ClientConnection) -> None:
        """Keep a connection whose response has ended, close any other."""
        if connection.reusable:
            self._free.append(connection)
        else:
            connection.close()

    def head(self, path: str, length: int) -> bytes:
        """The head of a request."""
        return (
            f"POST {path} HTTP/1.1\r\nhost: {self._host}:{self._port}\r\ncontent-type: application/json\r\n"
            f"content-length: {length}\r\n\r\n"
        ).encode("ascii")


Observe = Callable[[str, int, float], object]
"""Gets the model of an answer, its status (499: the client left) and its seconds."""


def _unobserved(model: str, status: int, seconds: float) -> None:
    pass


class LlmFrontend:
    """Handles the paths of LLMs. No engine takes requests before it is added."""

    def __init__(self, names: Sequence[str], guard: AccessGuard, observe: Observe = _unobserved) -> None:
        self.names, self.guard, self.observe = tuple(dict.fromkeys(names)), guard, observe
        self.created = int(time.time())
        self.draining = False
        self.links: list[EngineLink] = []
        self.on_lost: Callable[[EngineLink], object] = lambda link: None
        self.tasks: set[asyncio.Task[None]] = set()

    def add(self, engines: Sequence[StartedEngine]) -> None:
        """Take requests for these engines."""
        self.links += map(EngineLink, engines)

    @property
    def ready(self) -> bool:
        """Whether every model has an engine that takes requests."""
        left = {link.engine.served.model for link in self.links if not link.lost}
        return not self.draining and left == set(self.names)

    @staticmethod
    def has_path(path: str) -> bool:
        """Whether a path is one of LLMs."""
        return path.startswith("/v1/") or path in (HEALTH, STEPS)

    def admit(self, request: Request) -> int:
        """Largest body in bytes. Raises RequestFault if access is denied or the path is unknown."""
        self.guard.check(request)
        if request.path in (COMPLETIONS, CHATS):
            return MOST_BODY_BYTES
        if request.path in (MODELS, HEALTH, STEPS):
            return 0
        raise RequestFault(request.path, "is no path of this server", f"Ask {COMPLETIONS} or {CHATS}.", 404)

    def handle(self, request: Request) -> None:
        """Answer, or pass the request to an engine. Raises RequestFault."""
        if request.path in (MODELS, HEALTH):
            check_method(request, "GET")
            if request.path == HEALTH and not self.ready:
                raise RequestFault("the server", "has a model without an engine", "Ask again later.", 503)
            request.reply(json_response({"status": "ok"} if request.path == HEALTH else self._models()))
            return
        if request.path == STEPS:
            check_method(request, "GET")
            self._check_token()
            self._start(request, self._answer_steps(request))
            return
        check_method(request, "POST")
        if self.draining:
            problem = "is draining and takes no more requests"
            raise RequestFault("the server", problem, "Ask another server.", 503)
        self._start(request, PassedRequest(self, self._model(request), request).run())

    def _start(self, request: Request, answering: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(answering)
        request.gone = task.cancel
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _check_token(self) -> None:
        if not self.guard.has_token:
            problem = "are dropped once taken, by who shows a token, and this server was started without one"
            raise RequestFault("the steps", problem, "Serve with --token-file FILE.", 403)

    async def _answer_steps(self, request: Request) -> None:
        """The steps of each engine since they were last taken, by its id in the plan's simulation, for `measure`."""
        try:
            steps = {
                link.engine.served.server: await asyncio.to_thread(link.engine.process.take_steps)
                for link in self.links
            }
            content = {server: [asdict(step) for step in taken] for server, taken in steps.items()}
            request.reply(json_response(content))
        except Exception as error:  # noqa: BLE001 - the client gets a response for every error
            request.fail(error)

    async def drain(self, longest_s: float) -> None:
        """Take no more requests, and wait for those in flight."""
        self.draining = True
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=longest_s)

    def lose(self, link: EngineLink) -> None:
        """Ask an engine no more that takes no connection, until it is renewed."""
        if link.lost:
            return
        link.lost, served = True, link.engine.served
        print(f"the engine of {served.model} on {served.slice} is lost", file=sys.stderr, flush=True)
        self.on_lost(link)

    def fewest(self, model: str) -> EngineLink:
        """The engine of a model with the fewest requests. Raises RequestFault where none is left."""
        links = [link for link in self.links if link.engine.served.model == model and not link.lost]
        if not links:
            state = "has no engine left" if self.links else "is not ready yet"
            raise RequestFault(model, state, "Ask again later.", 503)
        return min(links, key=lambda link: link.in_flight)

    def _models(self) -> Any:
        entries = []
        for name in self.names:
            entry = {"id": name, "object": "model", "created": self.created, "owned_by": "torchsplit"}
            lengths = [link.engine.max_model_len for link in self.links if link.engine.served.model == name]
            entries.append(entry | ({"max_model_len": min(lengths)} if lengths else {}))
        return {"object": "list", "data": entries}

    def _model(self, request: Request) -> str:
        """The model that a body names; the only one where it names none. Raises RequestFault."""
        name = json_body(request).get("model", self.names[0] if len(self.names) == 1 else None)
        if name in self.names:
            return str(name)
        problem = "is missing" if name is None else f"is {json_words(name)}, which is not served here"
        raise RequestFault("model", problem, suggestion(name, self.names, "models"), 404)


class PassedRequest:
    """One request on its way to an engine, and the answer on its way back."""

    def __init__(self, front: LlmFrontend, model: str, request: Request) -> None:
        self._front, self._model, self._request = front, model, request
        self._began = False
        self._status = 503

    async def run(self) -> None:
        """Pass it on until an engine has answered."""
        begun = time.perf_counter()
        try:
            for _ in range(1 + len(self._front.links)):
                if await self._passed(self._front.fewest(self._model)):
                    return
            raise RequestFault("the engine", "closed the connection without an answer", "Ask again.", 503)
        except asyncio.CancelledError:
            self._status = 499
            raise
        except Exception as error:  # noqa: BLE001 - the client gets a response for every error
            self._status = error.status if isinstance(error, RequestFault) else 500
            self._request.fail(error)
        finally:
            self._front.observe(self._model, self._status, time.perf_counter() - begun)

    async def _passed(self, link: EngineLink) -> bool:
        """Whether this engine has answered, or begun to; it is lost where it takes no connection."""
        link.in_flight += 1
        try:
            try:
                connection = await link.connect()
            except OSError:
                self._front.lose(link)
                return False
            result = await self._send(link, connection)
        finally:
            link.in_flight -= 1
        return self._answered(result)

    async def _send(self, link: EngineLink, connection: ClientConnection) -> Result:
        done: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

        def on_result(result: Result) -> None:
            if not done.done():
                done.set_result(result)

        body = self._request.body
        head = link.head(self._request.path, len(body))
        connection.send(head, body, on_result=on_result, on_event_bytes=self._on_events)
        try:
            result = await done
        except asyncio.CancelledError:
            # The client is gone; without its connection the engine drops the request.
            connection.close()
            raise
        link.release(connection)
        return result

    def _on_events(self, block: bytes) -> None:
        if not self._began:
            self._request.begin_stream(EVENTS)
            self._began = True
        self._request.write(block)

    def _answered(self, result: Result) -> bool:
        if isinstance(result, ClientResponse) and not self._began:
            self._status, kind = result.status, result.headers.get("content-type", "application/json")
            self._request.reply(HttpResponse(result.status, (result.body,), (("content-type", kind),)))
        elif self._began:
            self._status = 200 if isinstance(result, ClientResponse) else 503
            if not isinstance(result, ClientResponse):
                fault = RequestFault("the engine", "stopped within its answer", "Ask again.", 503)
                content = {"error": {"message": str(fault), "type": "server_error", "code": 503}}
                self._request.write(b"data: %b\n\n" % json.dumps(content).encode())
            self._request.end_stream()
        else:
            return False
        return True


class PlanApplication:
    """Batch models and LLMs of one plan behind one address, told apart by their paths."""

    def __init__(self, batches: Any, llms: LlmFrontend) -> None:
        self._batches, self._llms = batches, llms

    def admit(self, request: Request) -> int:
        """Largest body in bytes. Raises RequestFault."""
        return int(self._of(request).admit(request))

    def handle(self, request: Request) -> None:
        """Reply now or later. Raises RequestFault."""
        if request.path == READY and not self._llms.ready:
            request.reply(json_response({"ready": False}, 503))
            return
        self._of(request).handle(request)

    def refused(self, request: Request | None, fault: RequestFault) -> None:
        """Count a request or connection that a limit rejected."""
        self._batches.refused(request, fault)

    def _of(self, request: Request) -> Any:
        return self._llms if self._llms.has_path(request.path) else self._batches
