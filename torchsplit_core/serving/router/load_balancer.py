"""Sends requests to the servers of a part: to the least busy first, then to the others if it fails."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

from torchsplit_core.serving.protocol.http_client import (
    ClientResponse,
    InvalidResponseError,
    ResponseTooLargeError,
)
from torchsplit_core.serving.protocol.tensors import RequestFault, TensorPort
from torchsplit_core.serving.router.backend import Backend
from torchsplit_core.values.serving.datatypes import SIZES
from torchsplit_core.values.serving.routes import RouteServer

RETRYABLE_STATUS = (429, 503)
"""Status codes of a full queue and of a server that is not ready; another server may respond."""
LARGEST_RESPONSE = 512 * 2**20
"""Largest response in bytes if the sizes of its outputs are free or unknown."""
LARGEST_TEXT = 2**20
"""Bytes of a response without tensors: its JSON, a message, metadata."""
NUMBER_BYTES = 26
"""Longest number in JSON, with its separator."""
REDEPLOY = "Deploy the parts and the routes anew, from one plan."


@dataclass(frozen=True, slots=True)
class PartPorts:
    """A part's inputs and outputs as its servers name them; `outputs` None: their metadata has none."""

    inputs: tuple[str, ...]
    outputs: tuple[TensorPort, ...] | None


def error_response(fault: RequestFault) -> ClientResponse:
    """The response for a fault."""
    body = json.dumps({"error": str(fault)}).encode()
    return ClientResponse(fault.status, {"content-type": "application/json"}, body)


def unreachable(model: str) -> RequestFault:
    """The fault if no server of a part can be reached."""
    return RequestFault(
        model, "has no server that can be reached", "Start its servers, or ask again later.", 503
    )


def max_response_bytes(outputs: Sequence[TensorPort] | None, rows: int, *, text: bool) -> int:
    """Largest response with so many rows of these outputs, as JSON (`text`) or bytes."""
    if outputs is None or any(-1 in port.shape for port in outputs):
        return LARGEST_RESPONSE
    row = sum(
        port.row_bytes // SIZES[port.datatype] * NUMBER_BYTES if text else port.row_bytes for port in outputs
    )
    return LARGEST_TEXT + rows * row


@dataclass
class LoadBalancer:
    """The servers of a part with their active requests; `token` is sent to all of them."""

    servers: tuple[RouteServer, ...]
    token: str | None = None
    _busy: dict[str, int] = field(default_factory=dict)
    _ports: PartPorts | None = None

    def __post_init__(self) -> None:
        headers = {} if self.token is None else {"authorization": f"Bearer {self.token}"}
        self._backends = {server.url: Backend(server.url, headers) for server in self.servers}

    async def send(
        self,
        model: str,
        headers: Mapping[str, str],
        body: bytes | bytearray,
        max_bytes: int = LARGEST_RESPONSE,
    ) -> ClientResponse:
        """The response of the first server that gives one; servers are tried by load over weight, each once.

        If none gives one: its last 429 or 503, 503 if none was reached, 502 for a response that is no HTTP or has more
        than `max_bytes`. The caller limits the time.
        """
        path = f"/v2/models/{quote(model, safe='')}/infer"
        tried_urls: set[str] = set()
        last = error_response(unreachable(model))
        while (server := self._least_busy(tried_urls)) is not None:
            tried_urls.add(server.url)
            self._busy[server.url] = self._busy.get(server.url, 0) + 1
            try:
                last = await self._backends[server.url].send("POST", path, headers, body, max_bytes)
            except InvalidResponseError as error:
                last = error_response(_invalid_response(model, error))
                continue
            except OSError:
                continue
            except ResponseTooLargeError:
                problem = f"gave an answer of more than {max_bytes} bytes, the most that its outputs can have"
                return error_response(RequestFault(model, problem, REDEPLOY, 502))
            finally:
                self._busy[server.url] -= 1
            if last.status not in RETRYABLE_STATUS:
                break
        return last

    async def ports(self, model: str, inputs: Sequence[str]) -> PartPorts:
        """The part's ports, from the first server that describes them with as many inputs as `inputs` (cached).

        Raises RequestFault if none does.
        """
        fault = unreachable(model)
        for server in () if self._ports is not None else self.servers:
            try:
                response = await self._get(server, f"/v2/models/{quote(model, safe='')}")
                if response.status == 200:
                    ports = _ports(response.body)
                    if len(ports.inputs) == len(inputs):
                        self._ports = ports
                        break
                    problem = f"takes {', '.join(ports.inputs)}, not {', '.join(inputs)}"
                elif response.status in RETRYABLE_STATUS:
                    continue
                else:
                    problem = f"has a server that answers {response.status} where it is asked for the model's metadata"
            except InvalidResponseError as error:
                fault = _invalid_response(model, error)
                continue
            except (OSError, ResponseTooLargeError):
                continue
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                problem = f"gave metadata that names no inputs ({type(error).__name__}: {str(error)[:200]})"
            fault = RequestFault(model, problem, REDEPLOY, 502)
        if self._ports is None:
            raise fault
        return self._ports

    async def ready(self, timeout_s: float) -> bool:
        """Whether a server is ready; each gets `timeout_s` to say so."""
        for server in self.servers:
            with contextlib.suppress(OSError, ResponseTooLargeError):
                async with asyncio.timeout(timeout_s):
                    if (await self._get(server, "/v2/health/ready")).status == 200:
                        return True
        return False

    async def _get(self, server: RouteServer, path: str) -> ClientResponse:
        return await self._backends[server.url].send("GET", path, {}, b"", LARGEST_TEXT)

    def _least_busy(self, tried: set[str]) -> RouteServer | None:
        untried = [server for server in self.servers if server.url not in tried]
        return min(
            untried,
            key=lambda candidate: (self._busy.get(candidate.url, 0) + 1) / candidate.weight,
            default=None,
        )


def _ports(body: bytes) -> PartPorts:
    metadata = json.loads(body)
    inputs = tuple(str(tensor["name"]) for tensor in metadata["inputs"])
    if "outputs" not in metadata:
        return PartPorts(inputs, None)
    outputs = []
    for tensor in metadata["outputs"]:
        shape = tuple(tensor["shape"])
        if not all(type(size) is int and size >= -1 for size in shape):
            raise ValueError(f"an output of the shape {list(shape)}")
        if tensor["datatype"] not in SIZES:
            raise ValueError(f"an output of the datatype {tensor['datatype']}")
        outputs.append(TensorPort(str(tensor["name"]), tensor["datatype"], shape[1:]))
    return PartPorts(inputs, tuple(outputs))


def _invalid_response(model: str, error: InvalidResponseError) -> RequestFault:
    problem = f"has a server that gave no answer that can be read as HTTP ({str(error)[:200]})"
    return RequestFault(model, problem, "Look at what that server says, or ask again later.", 502)
