"""Calls to the servers of a part: the least busy first, the next where one is not there or will not."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

from torchsplit_core.serving.routing.connections import Answer, NoAnswerError, Server, TooLargeError
from torchsplit_core.serving.wire.tensors import RequestFault, TensorPort
from torchsplit_core.values.serving.datatypes import SIZES
from torchsplit_core.values.serving.routes import RouteServer

ELSEWHERE = (429, 503)
"""What one server answers that another may not: its queue is full; it is not ready, draining, or lost its worker."""
LARGEST_ANSWER = 512 * 2**20
"""Bytes of an answer whose outputs have sizes that are free or not known."""
LARGEST_TEXT = 2**20
"""Bytes of an answer beside its tensors: its JSON, a message, metadata."""
NUMBER_BYTES = 26
"""A number in JSON at its longest, with what parts it from the next."""
REDEPLOY = "Deploy the parts and the routes anew, from one plan."


@dataclass(frozen=True, slots=True)
class Ports:
    """What a part's servers say that it takes, by name in order, and gives (None: they do not say)."""

    inputs: tuple[str, ...]
    outputs: tuple[TensorPort, ...] | None


def refusal(fault: RequestFault) -> Answer:
    """The answer that tells of a fault."""
    body = json.dumps({"error": str(fault)}).encode()
    return Answer(fault.status, {"content-type": "application/json"}, body)


def not_reached(model: str) -> RequestFault:
    """The fault where none of a part's servers is there."""
    return RequestFault(
        model, "has no server that can be reached", "Start its servers, or ask again later.", 503
    )


def most_bytes(outputs: Sequence[TensorPort] | None, rows: int, *, text: bool) -> int:
    """Bytes that an answer with so many rows of these outputs has at most, as JSON `text` or as bytes."""
    if outputs is None or any(-1 in port.shape for port in outputs):
        return LARGEST_ANSWER
    row = sum(
        port.row_bytes // SIZES[port.datatype] * NUMBER_BYTES if text else port.row_bytes for port in outputs
    )
    return LARGEST_TEXT + rows * row


@dataclass
class Balancer:
    """The servers of a part and how many requests each has in work; `token` is what they are shown."""

    servers: tuple[RouteServer, ...]
    token: str | None = None
    _busy: dict[str, int] = field(default_factory=dict)
    _ports: Ports | None = None

    def __post_init__(self) -> None:
        shown = {} if self.token is None else {"authorization": f"Bearer {self.token}"}
        self._calls = {server.url: Server(server.url, shown) for server in self.servers}

    async def post(
        self, model: str, headers: Mapping[str, str], body: bytes | bytearray, most: int = LARGEST_ANSWER
    ) -> Answer:
        """The answer of the first server that gives one: least busy for its weight first.

        Each is asked once at most; where none gives one, the last refusal stands, 503 where none was reached, 502 where
        an answer is none of HTTP or has more than `most` bytes. The caller says how long all of it may take.
        """
        path = f"/v2/models/{quote(model, safe='')}/infer"
        tried: set[str] = set()
        last = refusal(not_reached(model))
        while (server := self._next(tried)) is not None:
            tried.add(server.url)
            self._busy[server.url] = self._busy.get(server.url, 0) + 1
            try:
                last = await self._calls[server.url].ask("POST", path, headers, body, most)
            except NoAnswerError as error:
                last = refusal(_no_answer(model, error))
                continue
            except OSError:
                continue
            except TooLargeError:
                problem = f"gave an answer of more than {most} bytes, the most that its outputs can have"
                return refusal(RequestFault(model, problem, REDEPLOY, 502))
            finally:
                self._busy[server.url] -= 1
            if last.status not in ELSEWHERE:
                break
        return last

    async def ports(self, model: str, inputs: Sequence[str]) -> Ports:
        """What the servers say that the part takes, which is as many as `inputs`, and gives; asked until one says it.

        Raises RequestFault where none does.
        """
        fault = not_reached(model)
        for server in () if self._ports is not None else self.servers:
            try:
                answer = await self._get(server, f"/v2/models/{quote(model, safe='')}")
            except NoAnswerError as error:
                fault = _no_answer(model, error)
                continue
            except (OSError, TooLargeError):
                continue
            if answer.status == 200:
                try:
                    found = _ports(answer.body)
                    if len(found.inputs) == len(inputs):
                        self._ports = found
                        break
                    problem = f"takes {', '.join(found.inputs)}, not {', '.join(inputs)}"
                    fault = RequestFault(model, problem, REDEPLOY, 502)
                except (ValueError, TypeError, KeyError, RecursionError) as error:
                    problem = (
                        f"gave metadata that names no inputs ({type(error).__name__}: {str(error)[:200]})"
                    )
                    fault = RequestFault(model, problem, REDEPLOY, 502)
            elif answer.status not in ELSEWHERE:
                problem = (
                    f"has a server that answers {answer.status} where it is asked for the model's metadata"
                )
                fault = RequestFault(model, problem, REDEPLOY, 502)
        if self._ports is None:
            raise fault
        return self._ports

    async def ready(self, timeout_s: float) -> bool:
        """Whether one of them is; each has so long to say it."""
        for server in self.servers:
            with contextlib.suppress(OSError, TooLargeError):
                async with asyncio.timeout(timeout_s):
                    if (await self._get(server, "/v2/health/ready")).status == 200:
                        return True
        return False

    async def _get(self, server: RouteServer, path: str) -> Answer:
        return await self._calls[server.url].ask("GET", path, {}, b"", LARGEST_TEXT)

    def _next(self, tried: set[str]) -> RouteServer | None:
        left = [server for server in self.servers if server.url not in tried]
        return min(left, key=lambda one: (self._busy.get(one.url, 0) + 1) / one.weight, default=None)


def _ports(body: bytes) -> Ports:
    told = json.loads(body)
    inputs = tuple(str(tensor["name"]) for tensor in told["inputs"])
    if "outputs" not in told:
        return Ports(inputs, None)
    outputs = []
    for tensor in told["outputs"]:
        shape = tuple(tensor["shape"])
        if not all(type(size) is int and size >= -1 for size in shape):
            raise ValueError(f"an output of the shape {list(shape)}")
        if tensor["datatype"] not in SIZES:
            raise ValueError(f"an output of the datatype {tensor['datatype']}")
        outputs.append(TensorPort(str(tensor["name"]), tensor["datatype"], shape[1:]))
    return Ports(inputs, tuple(outputs))


def _no_answer(model: str, error: NoAnswerError) -> RequestFault:
    problem = f"has a server that gave no answer that can be read as HTTP ({str(error)[:200]})"
    return RequestFault(model, problem, "Look at what that server says, or ask again later.", 502)
