"""Inference requests and answers of Open Inference Protocol v2 as tensors, with its extension for binary tensors.

Data is kept as it goes over the wire (little-endian, row by row); only what a client sends or wants as JSON is
turned into numbers. Source: docs of the KServe v2 protocol and of Triton's "binary tensor data" extension.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

HEADER_LENGTH = "Inference-Header-Content-Length"

DTYPES: Mapping[str, str] = {
    "BOOL": "?", "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8", "INT8": "i1",
    "INT16": "<i2", "INT32": "<i4", "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
}  # fmt: skip
"""As numpy writes them; BF16, which it does not know, goes as bytes alone."""
WIDTHS: Mapping[str, int] = {name: np.dtype(code).itemsize for name, code in DTYPES.items()} | {"BF16": 2}


class WireFault(ValueError):
    """What is not as the protocol has it, in words for a client (400)."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor on its way."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True, slots=True)
class Message:
    """A request's inputs or an answer's outputs. `head` is its JSON."""

    head: Mapping[str, Any]
    tensors: tuple[Tensor, ...]


def read(body: bytes, header_length: str | None, key: str) -> Message:
    """A body whose tensors stand under `key` (inputs or outputs). Raises WireFault."""
    split = len(body)
    if header_length is not None:
        if not header_length.isascii() or not header_length.isdigit() or int(header_length) > len(body):
            raise WireFault(f"{HEADER_LENGTH} is {header_length!r}, of a body of {len(body)} bytes")
        split = int(header_length)
    try:
        head = json.loads(body[:split])
    except (ValueError, RecursionError) as error:
        raise WireFault(f"the body is no JSON: {error}") from error
    if not isinstance(head, dict) or not isinstance(head.get(key), list):
        raise WireFault(f"the body is an object with a list of {key}")
    rest = memoryview(body)[split:]
    tensors = []
    for entry in head[key]:
        tensor, size = _tensor(entry, rest)
        tensors.append(tensor)
        rest = rest[size:]
    if len(rest):
        raise WireFault(f"{len(rest)} bytes follow the last tensor")
    return Message(head, tuple(tensors))


def write(
    head: Mapping[str, Any], key: str, tensors: Iterable[Tensor], as_json: frozenset[str] = frozenset()
) -> tuple[bytes, str | None]:
    """The body and the length of its JSON (None where it is all JSON); tensors named in `as_json` are numbers there."""
    entries, blobs = [], []
    for tensor in tensors:
        entry: dict[str, Any] = {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": list(tensor.shape),
        }
        if tensor.name in as_json:
            entry["data"] = _numbers(tensor)
        else:
            entry["parameters"] = {"binary_data_size": len(tensor.data)}
            blobs.append(tensor.data)
        entries.append(entry)
    text = json.dumps({**head, key: entries}, allow_nan=True).encode()
    return (b"".join([text, *blobs]), str(len(text))) if blobs else (text, None)


def wanted_as_json(request: Mapping[str, Any], names: Iterable[str]) -> frozenset[str]:
    """Which of the outputs a client wants as JSON: those without binary_data, unless it said so for all."""
    everything = _flag(request.get("parameters"), "binary_data_output")
    asked = {
        entry["name"]: _flag(entry.get("parameters"), "binary_data", everything)
        for entry in request.get("outputs") or ()
    }
    return frozenset(name for name in names if not asked.get(name, everything))


def wanted_names(request: Mapping[str, Any], known: tuple[str, ...]) -> tuple[str, ...]:
    """The outputs that a client asks for: all where it names none. Raises WireFault for one that is not there."""
    entries = request.get("outputs")
    if entries in (None, []):
        return known
    if not isinstance(entries, list) or not all(
        isinstance(entry, dict) and isinstance(entry.get("name"), str) for entry in entries
    ):
        raise WireFault("outputs is a list of objects with a name")
    for entry in entries:
        if entry["name"] not in known:
            raise WireFault(f"there is no output {entry['name']!r}; known are {', '.join(known)}")
    return tuple(entry["name"] for entry in entries)


def _flag(parameters: object, name: str, default: bool = False) -> bool:
    return bool(parameters.get(name, default)) if isinstance(parameters, dict) else default


def _tensor(entry: object, rest: memoryview) -> tuple[Tensor, int]:
    """A tensor and how many bytes of what follows the JSON are its own."""
    if not isinstance(entry, dict):
        raise WireFault("a tensor is an object")
    name, datatype, shape = entry.get("name"), entry.get("datatype"), entry.get("shape")
    if not isinstance(name, str) or not isinstance(datatype, str) or datatype not in WIDTHS:
        raise WireFault(f"tensor {name!r}: the datatype {datatype!r} is none of {', '.join(WIDTHS)}")
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise WireFault(f"tensor {name}: a shape is a list of whole numbers from 0")
    expected = math.prod(shape) * WIDTHS[datatype]
    parameters = entry.get("parameters")
    size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
    if size is not None:
        if size != expected or size > len(rest):
            raise WireFault(
                f"tensor {name}: {expected} bytes belong to its shape, it says {size!r} and {len(rest)} are left"
            )
        return Tensor(name, datatype, tuple(shape), bytes(rest[:size])), expected
    return Tensor(name, datatype, tuple(shape), _packed(name, datatype, shape, entry.get("data"))), 0


def _packed(name: str, datatype: str, shape: list[int], data: object) -> bytes:
    if datatype not in DTYPES:
        raise WireFault(f"tensor {name}: {datatype} goes as binary data alone")
    if not isinstance(data, list):
        raise WireFault(f"tensor {name} has neither data nor binary_data_size")
    try:
        found = np.array(data, dtype=np.dtype(DTYPES[datatype]))
    except (ValueError, TypeError, OverflowError) as error:
        raise WireFault(f"tensor {name}: its data are no {datatype}: {error}") from error
    if found.size != math.prod(shape):
        raise WireFault(f"tensor {name}: {found.size} values, its shape has {math.prod(shape)}")
    return found.tobytes()


def _numbers(tensor: Tensor) -> list[Any]:
    if tensor.datatype not in DTYPES:
        raise WireFault(
            f"output {tensor.name}: {tensor.datatype} goes as binary data alone; ask with binary_data"
        )
    found: list[Any] = np.frombuffer(tensor.data, dtype=np.dtype(DTYPES[tensor.datatype])).tolist()
    return found
