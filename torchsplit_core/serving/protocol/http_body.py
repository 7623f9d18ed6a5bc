"""Bodies of requests: size limits, decompression, the length of their JSON."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

from torchsplit_core.serving.protocol.tensors import (
    LENGTH_HEADER,
    MOST_ROWS,
    REQUEST,
    SEND_LENGTH,
    RequestFault,
    TensorPort,
)
from torchsplit_core.serving.settings import RequestLimits
from torchsplit_core.values import quoted

LIMITS = RequestLimits()
NUMBER_BYTES = 32
"""Longest number in JSON: a float64 has up to 24 characters, besides a comma, a space and brackets."""
OTHER_JSON_BYTES = 64 * 1024
"""JSON of a request besides its numbers."""
PARSED_NUMBER_BYTES = 200
"""Memory for a parsed number: the object, its entry in a list, a list of its own."""
MAX_PARSE_MEMORY = 2**30
"""Memory that parsing one request may take."""


def _most_numbers(ports: Sequence[TensorPort]) -> int | None:
    """Numbers in the largest request for these inputs; None if a size is free."""
    if any(-1 in port.shape for port in ports):
        return None
    return MOST_ROWS * sum(math.prod(port.shape) for port in ports)


def max_json_bytes(ports: Sequence[TensorPort], limits: RequestLimits) -> int:
    """Most bytes of JSON that a request for these inputs needs, within the limit."""
    numbers = _most_numbers(ports)
    return (
        limits.json_bytes
        if numbers is None
        else min(limits.json_bytes, OTHER_JSON_BYTES + NUMBER_BYTES * numbers)
    )


def max_body_bytes(ports: Sequence[TensorPort], limits: RequestLimits = LIMITS) -> int:
    """Most bytes that a request for these inputs needs, in JSON or as bytes, within the limit."""
    if any(-1 in port.shape for port in ports):
        return limits.body_bytes
    as_bytes = OTHER_JSON_BYTES + MOST_ROWS * sum(port.row_bytes for port in ports)
    return min(limits.body_bytes, max(as_bytes, max_json_bytes(ports, limits)))


def check_json(text: memoryview, ports: Sequence[TensorPort], limits: RequestLimits) -> None:
    """Raises RequestFault for JSON that is longer, or needs more memory, than a request for these inputs can."""
    from torchsplit_core.files import measure

    most = max_json_bytes(ports, limits)
    if len(text) > most:
        problem = f"has {len(text)} bytes of JSON, of {most} that are taken"
        raise RequestFault(REQUEST, problem, "Send its tensors as bytes, or the rows in parts.", 413, "json")
    numbers = _most_numbers(ports)
    memory = MAX_PARSE_MEMORY
    if numbers is not None:
        memory = min(memory, 2**20 + PARSED_NUMBER_BYTES * numbers + 4 * most)
    if (needed := measure(bytes(text)).read_bytes) > memory:
        problem = f"has JSON that may take {needed} bytes to read, of {memory} that its rows can need"
        raise RequestFault(REQUEST, problem, "Send numbers, and nothing else, in data.", 413, "json")


def is_compressed(encoding: str) -> bool:
    """Whether a content encoding needs decompression. Raises RequestFault for an unknown encoding."""
    encoding = encoding.strip().lower()
    if encoding not in ("", "identity", "gzip", "deflate"):
        problem = f"is {quoted(encoding)}, not gzip or deflate"
        raise RequestFault("content-encoding", problem, "Send the body in one of them, or as it is.", 415)
    return encoding in ("gzip", "deflate")


def decompress(body: bytes, encoding: str, max_bytes: int) -> bytes:
    """The decompressed body (gzip or zlib), of at most `max_bytes`. Raises RequestFault."""
    if not is_compressed(encoding):
        return body
    try:
        decompressor = zlib.decompressobj(zlib.MAX_WBITS | 32)
        content = decompressor.decompress(body, max_bytes + 1)
    except zlib.error as error:
        problem = f"cannot be unpacked as {encoding.strip().lower()}: {error}"
        raise RequestFault(REQUEST, problem, "Send the body as its content-encoding says.") from error
    if len(content) > max_bytes:
        raise body_too_large(max_bytes)
    return content


def body_too_large(max_bytes: int) -> RequestFault:
    """The fault for a body with more bytes, compressed or not."""
    problem = f"has more than the {max_bytes} bytes that are taken"
    return RequestFault(REQUEST, problem, "Send the rows in parts.", 413, "body")


def parse_json_length(header: str | None) -> int | None:
    """The value of LENGTH_HEADER; None: the body is all JSON. Raises RequestFault."""
    if header is None:
        return None
    if not (header.isascii() and header.isdigit()) or len(header) > 12:
        raise RequestFault(LENGTH_HEADER, f"is {quoted(header)}, not a number of bytes", SEND_LENGTH)
    return int(header)


def content_headers(json_bytes: int | None) -> dict[str, str]:
    """Headers of a body whose first `json_bytes` (None: all) are JSON."""
    if json_bytes is None:
        return {"content-type": "application/json"}
    return {"content-type": "application/octet-stream", LENGTH_HEADER: str(json_bytes)}
