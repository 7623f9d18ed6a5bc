"""A server in a thread of the test's process, its workers in processes of their own as ever."""

import asyncio
import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torchsplit_core.serving.device_binding import bind_slices
from torchsplit_core.serving.frontend.server import serve_until
from torchsplit_core.serving.plan import plan_serving
from torchsplit_core.serving.protocol.listener import open_listener
from torchsplit_core.serving.settings import ReadyServer, ServeSettings
from torchsplit_core.values import PlanOutcome, PlanRequest


@dataclass
class Running:
    """A server that is ready."""

    host: str
    port: int
    serving: ReadyServer
    loop: asyncio.AbstractEventLoop
    stop_event: asyncio.Event

    @property
    def address(self) -> str:
        """As tritonclient takes it."""
        return f"{self.host}:{self.port}"

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | dict[str, Any] | None = None,
        headers: dict[str, str] = {},  # noqa: B006
    ) -> tuple[int, Any]:
        """Status and JSON (or text) of one request on a connection of its own."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=240)
        try:
            content = json.dumps(body).encode() if isinstance(body, dict) else body
            connection.request(method, path, content, headers)
            answer = connection.getresponse()
            text = answer.read()
            try:
                return answer.status, json.loads(text)
            except ValueError:
                return answer.status, text.decode(errors="replace")
        finally:
            connection.close()

    def infer(self, model: str, inputs: list[dict[str, Any]], **more: Any) -> tuple[int, Any]:
        """One inference in JSON."""
        return self.ask("POST", f"/v2/models/{model}/infer", {"inputs": inputs, **more})

    def state(self) -> tuple[str, int]:
        """Of a server of one worker and model of one stage: what the worker does, and how many rows wait."""
        state = self.ask("GET", "/torchsplit/state")[1]
        (worker,), (model,) = state["workers"].values(), state["models"].values()
        return worker["state"], *model["waiting"]

    def stop(self) -> None:
        """What SIGTERM does."""
        self.loop.call_soon_threadsafe(self.stop_event.set)


@contextmanager
def running(
    plan: tuple[PlanOutcome, PlanRequest], settings: ServeSettings | None = None, *, start_s: float = 120.0
) -> Iterator[Running]:
    """Serve it on a free port, slices on cores in turn; raises what the server raised."""
    settings = replace(settings or ServeSettings(), port=0, stand_in="cpu")
    roster = plan_serving(*plan, bind_slices(plan[0], "cpu"))
    found: list[Running] = []
    faults: list[BaseException] = []
    begun = threading.Event()

    async def work(listener: Any) -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        host, port = listener.getsockname()[:2]

        def ready(serving: ReadyServer) -> None:
            found.append(Running(host, port, serving, loop, stop))
            begun.set()

        await serve_until(stop, roster, settings, listener, ready)

    def run() -> None:
        try:
            with open_listener(settings.host, settings.port) as listener:
                asyncio.run(work(listener))
        except BaseException as error:  # noqa: BLE001 - raised again in the test
            faults.append(error)
        finally:
            begun.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert begun.wait(start_s), "the server did not become ready"
        if faults:
            raise faults[0]
        yield found[0]
    finally:
        if found:
            found[0].stop()
        thread.join(60)
    if faults:
        raise faults[0]
    assert not thread.is_alive()
