"""Calls to the servers of a part: the least busy first, the next where one is not there or will not."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit

from torchsplit_core.serving.wire.tensors import RequestFault
from torchsplit_core.values.serving.routes import RouteServer

ELSEWHERE = (429, 503)
"""What one server answers that another may not: its queue is full; it is not ready, draining, or lost its worker."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A server's answer. Header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def refusal(fault: RequestFault) -> Answer:
    """The answer that tells of a fault."""
    body = json.dumps({"error": str(fault)}).encode()
    return Answer(fault.status, {"content-type": "application/json"}, body)


def not_reached(model: str) -> RequestFault:
    """The fault where none of a part's servers is there."""
    return RequestFault(
        model, "has no server that can be reached", "Start its servers, or ask again later.", 503
    )


def call(
    server: str, method: str, path: str, headers: Mapping[str, str], body: bytes | None, timeout_s: float
) -> Answer:
    """One request on a connection of its own, so that a Service behind one name spreads them. Raises OSError."""
    where = urlsplit(server)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=timeout_s)
    try:
        connection.request(method, path, body, dict(headers))
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, found, response.read())
    except http.client.HTTPException as error:
        raise ConnectionError(f"{server}: {type(error).__name__}") from error
    finally:
        connection.close()


@dataclass
class Balancer:
    """The servers of a part and how many requests each has in work."""

    servers: tuple[RouteServer, ...]
    _busy: dict[str, int] = field(default_factory=dict)
    _names: tuple[str, ...] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def post(self, model: str, headers: Mapping[str, str], body: bytes, timeout_s: float) -> Answer:
        """The answer of the first server that gives one: least busy for its weight first.

        Each is asked once at most; where none gives one, the last refusal stands, 503 where none was reached.
        Raises TimeoutError where a server took the request and did not answer in time.
        """
        path = f"/v2/models/{quote(model, safe='')}/infer"
        tried: set[str] = set()
        last = refusal(not_reached(model))
        while (server := self._next(tried)) is not None:
            tried.add(server.url)
            try:
                last = call(server.url, "POST", path, headers, body, timeout_s)
            except TimeoutError:
                raise
            except OSError:
                continue
            finally:
                with self._lock:
                    self._busy[server.url] -= 1
            if last.status not in ELSEWHERE:
                break
        return last

    def input_names(self, model: str, timeout_s: float) -> tuple[str, ...] | None:
        """What the servers call the part's inputs, in order; asked once. None where none of them says."""
        for server in () if self._names is not None else self.servers:
            try:
                answer = call(server.url, "GET", f"/v2/models/{quote(model, safe='')}", {}, None, timeout_s)
            except OSError:
                continue
            if answer.status == 200:
                self._names = tuple(str(tensor["name"]) for tensor in json.loads(answer.body)["inputs"])
                break
        return self._names

    def ready(self, timeout_s: float) -> bool:
        """Whether one of them is."""
        for server in self.servers:
            try:
                if call(server.url, "GET", "/v2/health/ready", {}, None, timeout_s).status == 200:
                    return True
            except OSError:
                continue
        return False

    def _next(self, tried: set[str]) -> RouteServer | None:
        with self._lock:
            left = [server for server in self.servers if server.url not in tried]
            if not left:
                return None
            chosen = min(left, key=lambda one: (self._busy.get(one.url, 0) + 1) / one.weight)
            self._busy[chosen.url] = self._busy.get(chosen.url, 0) + 1
            return chosen
