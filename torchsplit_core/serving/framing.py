"""Messages between the frontend and a worker: two lengths, a JSON head and a payload.

A head to a worker has `rows` and, for a model or its first stage, `sizes`, the bytes of each input; the payload is the
inputs' rows. A later stage gets the payload of the stage before it (`stages.tensor_transport`), which the frontend
does not read. The head of a response has `ms`, the compute time, and `shapes` and `dtypes` of the outputs, or `fault`.
"""

from __future__ import annotations

import json
import struct
from typing import Any

LENGTH_PREFIX = struct.Struct("<IQ")
LARGEST_HEAD = 2**20
LARGEST_BODY = 2**34


def encode_header(head: dict[str, Any], following: int) -> bytes:
    """Lengths and head of a message with a payload of so many bytes."""
    text = json.dumps(head, separators=(",", ":")).encode()
    return LENGTH_PREFIX.pack(len(text), following) + text


def frame_lengths(start: bytes | bytearray) -> tuple[int, int]:
    """Bytes of the head and of the payload. Raises ValueError if they exceed the limits."""
    head, following = LENGTH_PREFIX.unpack(start)
    if head > LARGEST_HEAD or following > LARGEST_BODY:
        raise ValueError("a message too large")
    return head, following
