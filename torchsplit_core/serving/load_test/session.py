"""Runs a server and a load generator as child processes that exchange lines of JSON."""

from __future__ import annotations

import base64
import http.client
import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from torchsplit_core.files import write_text
from torchsplit_core.serving.protocol.child_process import FRONT, GENERATOR, run_child
from torchsplit_core.serving.protocol.client import RawTensor, encode_request
from torchsplit_core.serving.protocol.http_body import content_headers
from torchsplit_core.serving.settings import MOST_CONNECTIONS, AccessSettings, ServeSettings
from torchsplit_core.values import InputFault, PlanOutcome, PlanRequest, Progress

SETTLE_S = 30.0
"""Time to wait for responses after the last request."""

Answers = dict[str, list[tuple[float, float, int]]]
"""By model, for each request: due time (s), response time (s), status (0: no response)."""


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The responses of a load. `begun_s`: its start by time.perf_counter, which all processes of a host share.

    `processor_s` is the processor time of the generator.
    """

    answers: Answers
    begun_s: float
    processor_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ServerHandle:
    """A server that is ready; `pid` is its process if it was started here."""

    host: str
    port: int
    warnings: tuple[str, ...]
    pid: int = 0
    token: str = ""

    def fetch_json(self, method: str, path: str) -> Any:
        """The JSON of a response. Raises InputFault if there is none or its status is not 200."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=30)
        try:
            connection.request(method, path, headers={"authorization": f"Bearer {self.token}"})
            response = connection.getresponse()
            content = json.loads(response.read())
            if response.status != 200:
                raise ValueError(str(content.get("error")))
            return content
        except (OSError, ValueError, http.client.HTTPException) as error:
            problem = f"gave no answer to {method} {path}: {error or type(error).__name__}"
            raise InputFault("the server", problem, "Measure again.") from error
        finally:
            connection.close()

    def example_request(self, model: str) -> bytes:
        """A whole HTTP request with one row of the model's example, its tensors as bytes."""
        example = self.fetch_json("GET", f"/torchsplit/examples/{model}")
        body, length = encode_request(
            [
                RawTensor(item["name"], item["datatype"], item["shape"], base64.b64decode(item["bytes"]))
                for item in example["inputs"]
            ]
        )
        headers = {
            "host": self.host,
            "authorization": f"Bearer {self.token}",
            "content-length": str(len(body)),
            **content_headers(length),
        }
        lines = [f"POST /v2/models/{model}/infer HTTP/1.1", *(": ".join(pair) for pair in headers.items())]
        return "\r\n".join([*lines, "", ""]).encode() + body


@contextmanager
def serving_session(
    outcome: PlanOutcome, request: PlanRequest, settings: ServeSettings, progress: Progress
) -> Iterator[ServerHandle]:
    """Serve the plan in a child process, which ends with the `with` block or this process. Raises InputFault."""
    # With a token nobody else can send requests or reset the statistics.
    token = secrets.token_urlsafe()
    settings = replace(settings, access=AccessSettings(token=token))
    command = {"plan": write_text(outcome), "request": write_text(request), "settings": asdict(settings)}
    with run_child(FRONT, command) as (pid, lines):
        for message in lines:
            if "progress" in message:
                progress(*message["progress"])
            elif "fault" in message:
                where, problem, remedy = message["fault"]
                raise InputFault(where, problem, remedy)
            else:
                address = urlsplit(message["ready"]["url"])
                warnings = tuple(message["ready"]["warnings"])
                yield ServerHandle(str(address.hostname), int(address.port or 0), warnings, pid, token)
                return
        raise InputFault(
            "the server",
            "ended before it was ready",
            "Serve the plan by itself to see why (torchsplit serve).",
        )


def send_load(
    server: ServerHandle,
    requests: Mapping[str, bytes],
    times_s: Mapping[str, Sequence[float]],
    cores: Sequence[int],
    on_progress: Callable[[dict[str, Any]], None] = lambda moment: None,
    *,
    connections: int = MOST_CONNECTIONS,
) -> LoadResult:
    """Send each model's request at its times, from a child process. Raises InputFault.

    At most `connections` requests are in flight; if that delays requests, the load is no longer open-loop.
    """
    streams = [
        {"name": name, "request": base64.b64encode(requests[name]).decode(), "times_s": list(times)}
        for name, times in times_s.items()
    ]
    command = {
        "host": server.host, "port": server.port, "streams": streams, "cores": list(cores), "settle_s": SETTLE_S,
        "connections": connections,
    }  # fmt: skip
    with run_child(GENERATOR, command) as (_, lines):
        for message in lines:
            if "answers" in message:
                answers = {name: list(map(tuple, rows)) for name, rows in message["answers"].items()}
                return LoadResult(answers, float(message["begun_s"]), float(message["processor_s"]))
            on_progress(message)
    raise InputFault("the load generator", "ended before it had sent every request", "Measure again.")
