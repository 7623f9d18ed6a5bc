"""The client's side of the protocol, with tensors as bytes; for the router, load tests and Triton's containers.

Source: the KServe v2 protocol and Triton's binary tensor data extension.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torchsplit_core.serving.protocol.http_body import parse_json_length
from torchsplit_core.serving.protocol.tensors import RequestFault
from torchsplit_core.values.serving.datatypes import SIZES


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor as bytes: little-endian, row-major."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes | memoryview


def encode_request(tensors: Sequence[RawTensor]) -> tuple[bytes, int]:
    """A request body that asks for all outputs as bytes, and the length of its JSON."""
    inputs = [
        {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": list(tensor.shape),
            "parameters": {"binary_data_size": len(tensor.data)},
        }
        for tensor in tensors
    ]
    text = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    return b"".join([text, *(tensor.data for tensor in tensors)]), len(text)


def decode_outputs(body: bytes, length_header: str | None) -> tuple[RawTensor, ...]:
    """The tensors of the response to such a request. Raises ValueError if it is invalid."""
    try:
        split = parse_json_length(length_header)
        entries = json.loads(body[:split])["outputs"]
        offset = len(body) if split is None else split
        tensors = []
        for entry in entries:
            tensor, offset = _decode_output(entry, body, offset)
            tensors.append(tensor)
    except (RequestFault, ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"no outputs as bytes ({type(error).__name__}: {error})") from error
    if offset != len(body):
        raise ValueError(f"{len(body) - offset} bytes behind its last tensor")
    return tuple(tensors)


def _decode_output(entry: Any, body: bytes, offset: int) -> tuple[RawTensor, int]:
    """A tensor, and the offset of the next one."""
    name, datatype, shape = str(entry["name"]), entry["datatype"], tuple(entry["shape"])
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"{name} has the shape {list(shape)}")
    size, stated_bytes = math.prod(shape) * SIZES[datatype], entry["parameters"]["binary_data_size"]
    if stated_bytes != size or offset + size > len(body):
        raise ValueError(
            f"{name} says {stated_bytes!r} bytes, of {size} at its shape, and {len(body) - offset} are there"
        )
    return RawTensor(name, datatype, shape, memoryview(body)[offset : offset + size]), offset + size
