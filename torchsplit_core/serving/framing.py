"""What crosses the socket between the front and a worker: a JSON head and the bytes of tensors.

Eight bytes say how long the head and what follows it are. A head to a worker has `rows` and, for a model or the first
of its parts, `sizes`: the bytes of each input; what follows are the inputs' rows one behind the other. To a later part
goes what the part before it gave, as `stages.wire` writes it, unread by the front. Back comes `ms`, the time of the
computation, with `shapes` and the outputs' bytes (or again such a message), or `fault`.
"""

from __future__ import annotations

import json
import struct
from typing import Any

LENGTH_PREFIX = struct.Struct("<IQ")
LARGEST_HEAD = 2**20
LARGEST_BODY = 2**34


def encode_header(head: dict[str, Any], following: int) -> bytes:
    """The beginning of a message whose tensors take so many bytes."""
    text = json.dumps(head, separators=(",", ":")).encode()
    return LENGTH_PREFIX.pack(len(text), following) + text


def frame_lengths(start: bytes | bytearray) -> tuple[int, int]:
    """Bytes of the head and of what follows it. Raises ValueError for what no worker sends."""
    head, following = LENGTH_PREFIX.unpack(start)
    if head > LARGEST_HEAD or following > LARGEST_BODY:
        raise ValueError("a message too large")
    return head, following
