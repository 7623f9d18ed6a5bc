"""The client's side: tensors sent and got back as bytes. The router, load tests and Triton's containers ask so.

Source: the KServe v2 protocol and Triton's extension for binary tensor data.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torchsplit_core.serving.wire.bodies import json_length
from torchsplit_core.serving.wire.tensors import RequestFault
from torchsplit_core.values.serving.datatypes import SIZES


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor on its way, its numbers as they lie in memory: little-endian, row by row."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes | memoryview


def request_of(tensors: Sequence[Tensor]) -> tuple[bytes, int]:
    """A body that asks for all outputs as bytes, and the length of its JSON."""
    inputs = [
        {
            "name": one.name,
            "datatype": one.datatype,
            "shape": list(one.shape),
            "parameters": {"binary_data_size": len(one.data)},
        }
        for one in tensors
    ]
    text = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    return b"".join([text, *(one.data for one in tensors)]), len(text)


def outputs_of(body: bytes, length_header: str | None) -> tuple[Tensor, ...]:
    """The tensors of an answer to such a request. Raises ValueError for what is none."""
    try:
        split = json_length(length_header)
        entries = json.loads(body[:split])["outputs"]
        at = len(body) if split is None else split
        found = []
        for entry in entries:
            tensor, at = _output(entry, body, at)
            found.append(tensor)
    except (RequestFault, ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"no outputs as bytes ({type(error).__name__}: {error})") from error
    if at != len(body):
        raise ValueError(f"{len(body) - at} bytes behind its last tensor")
    return tuple(found)


def _output(entry: Any, body: bytes, at: int) -> tuple[Tensor, int]:
    """A tensor and where the next one's bytes begin."""
    name, datatype, shape = str(entry["name"]), entry["datatype"], tuple(entry["shape"])
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"{name} has the shape {list(shape)}")
    size, told = math.prod(shape) * SIZES[datatype], entry["parameters"]["binary_data_size"]
    if told != size or at + size > len(body):
        raise ValueError(
            f"{name} says {told!r} bytes, of {size} at its shape, and {len(body) - at} are there"
        )
    return Tensor(name, datatype, shape, memoryview(body)[at : at + size]), at + size
