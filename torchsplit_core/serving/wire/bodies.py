"""Bodies as they come over HTTP: how large they may be, unpacked, and where their JSON ends."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

from torchsplit_core.serving.settings import Limits
from torchsplit_core.serving.wire.tensors import (
    LENGTH_HEADER,
    MOST_ROWS,
    REQUEST,
    SEND_LENGTH,
    RequestFault,
    TensorPort,
)
from torchsplit_core.values import quoted

LIMITS = Limits()
NUMBER_BYTES = 32
"""JSON of one number at most: a float64 has up to 24 characters, with a comma, a space and brackets."""
BESIDE_BYTES = 64 * 1024
"""JSON of a request beside its numbers."""
PARSED_NUMBER = 200
"""Memory that a number of JSON takes while it is read: itself, its place in a list, a list of its own."""
MOST_PARSED = 2**30
"""Memory that the reading of one request may take."""


def _most_numbers(ports: Sequence[TensorPort]) -> int | None:
    """Numbers in the largest request for these inputs; None where a size is free."""
    if any(-1 in port.shape for port in ports):
        return None
    return MOST_ROWS * sum(math.prod(port.shape) for port in ports)


def largest_json(ports: Sequence[TensorPort], limits: Limits) -> int:
    """Bytes of JSON that a request for these inputs can need, within the limit."""
    numbers = _most_numbers(ports)
    return (
        limits.json_bytes
        if numbers is None
        else min(limits.json_bytes, BESIDE_BYTES + NUMBER_BYTES * numbers)
    )


def largest_body(ports: Sequence[TensorPort], limits: Limits = LIMITS) -> int:
    """Bytes that a request for these inputs can have, in JSON or as bytes, within the limit."""
    if any(-1 in port.shape for port in ports):
        return limits.body_bytes
    as_bytes = BESIDE_BYTES + MOST_ROWS * sum(port.row_bytes for port in ports)
    return min(limits.body_bytes, max(as_bytes, largest_json(ports, limits)))


def check_json(text: memoryview, ports: Sequence[TensorPort], limits: Limits) -> None:
    """Raises RequestFault for JSON that is longer, or takes more memory to read, than a request for these inputs."""
    from torchsplit_core.files import measure

    most = largest_json(ports, limits)
    if len(text) > most:
        problem = f"has {len(text)} bytes of JSON, of {most} that are taken"
        raise RequestFault(REQUEST, problem, "Send its tensors as bytes, or the rows in parts.", 413, "json")
    numbers = _most_numbers(ports)
    memory = MOST_PARSED
    if numbers is not None:
        memory = min(memory, 2**20 + PARSED_NUMBER * numbers + 4 * most)
    if (needed := measure(bytes(text)).read_bytes) > memory:
        problem = f"has JSON that may take {needed} bytes to read, of {memory} that its rows can need"
        raise RequestFault(REQUEST, problem, "Send numbers, and nothing else, in data.", 413, "json")


def packed(encoding: str) -> bool:
    """Whether a body of this content encoding has to be unpacked. Raises RequestFault for what is no such encoding."""
    encoding = encoding.strip().lower()
    if encoding not in ("", "identity", "gzip", "deflate"):
        problem = f"is {quoted(encoding)}, not gzip or deflate"
        raise RequestFault("content-encoding", problem, "Send the body in one of them, or as it is.", 415)
    return encoding in ("gzip", "deflate")


def unpacked(body: bytes, encoding: str, most: int) -> bytes:
    """The body without its content encoding (gzip or zlib), up to so many bytes. Raises RequestFault."""
    if not packed(encoding):
        return body
    try:
        unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)
        found = unpacker.decompress(body, most + 1)
    except zlib.error as error:
        problem = f"cannot be unpacked as {encoding.strip().lower()}: {error}"
        raise RequestFault(REQUEST, problem, "Send the body as its content-encoding says.") from error
    if len(found) > most:
        raise too_large(most)
    return found


def too_large(most: int) -> RequestFault:
    """The fault of a body with more bytes, as it comes or unpacked."""
    problem = f"has more than the {most} bytes that are taken"
    return RequestFault(REQUEST, problem, "Send the rows in parts.", 413, "body")


def json_length(header: str | None) -> int | None:
    """What LENGTH_HEADER says: None where the body is all JSON. Raises RequestFault."""
    if header is None:
        return None
    if not (header.isascii() and header.isdigit()) or len(header) > 12:
        raise RequestFault(LENGTH_HEADER, f"is {quoted(header)}, not a number of bytes", SEND_LENGTH)
    return int(header)


def headers_of(json_bytes: int | None) -> dict[str, str]:
    """What a body whose first `json_bytes` (None: all) are JSON is sent with."""
    if json_bytes is None:
        return {"content-type": "application/json"}
    return {"content-type": "application/octet-stream", LENGTH_HEADER: str(json_bytes)}
