"""The server's side: requests as raw rows, parsed and checked against what a model takes, and answers written."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchsplit_core.values import InputFault, quoted, suggestion
from torchsplit_core.values.serving.datatypes import OF_NUMPY, OF_TORCH, SIZES

MOST_ROWS = 4096
"""Rows of one request."""
LENGTH_HEADER = "inference-header-content-length"
"""Bytes of a body's JSON, where tensors follow it as bytes."""
REQUEST = "the request"
SEND_OBJECT = 'Send {"inputs": [{"name": …, "datatype": …, "shape": …, "data": …}]}.'
SEND_LENGTH = "Send the number of bytes that the JSON part of the body has."


class RequestFault(InputFault):
    """A request that is not served: the protocol's status, and the message of its answer."""

    def __init__(self, where: str, problem: str, remedy: str, status: int = 400) -> None:
        super().__init__(where, problem, remedy)
        self.status = status


@dataclass(frozen=True, slots=True)
class TensorPort:
    """An input or output of a model as its metadata tells it; `shape` without the batch, -1 for a size that is free."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, where no size is free."""
        return math.prod(self.shape) * SIZES[self.datatype]

    def told(self) -> dict[str, Any]:
        """Metadata: the first dimension is the batch, -1."""
        return {"name": self.name, "datatype": self.datatype, "shape": [-1, *self.shape]}


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A parsed request: shape and bytes of each input in the order of the model's, and how its answer is wanted.

    `wanted`: name and whether as bytes, empty for all of them as `binary` says.
    """

    id: str
    rows: int
    shapes: tuple[tuple[int, ...], ...]
    inputs: tuple[memoryview, ...]
    wanted: tuple[tuple[str, bool], ...]
    binary: bool
    timeout_s: float | None


def parse_request(
    body: bytes, json_bytes: int | None, inputs: Sequence[TensorPort], outputs: Sequence[str]
) -> InferRequest:
    """The request to such a model in a body whose first `json_bytes` (None: all) are its JSON. Raises RequestFault."""
    if json_bytes is not None and not 0 <= json_bytes <= len(body):
        raise RequestFault(LENGTH_HEADER, f"is {json_bytes}, and the body has {len(body)} bytes", SEND_LENGTH)
    try:
        told = json.loads(body[:json_bytes])
    except (ValueError, RecursionError) as error:
        raise RequestFault(REQUEST, f"is not JSON: {error}", SEND_OBJECT) from error
    if not isinstance(told, dict) or not isinstance(told.get("inputs"), list):
        raise RequestFault(REQUEST, "is not a JSON object with a list of inputs", SEND_OBJECT)
    binary = memoryview(body)[json_bytes if json_bytes is not None else len(body) :]
    found: dict[str, tuple[tuple[int, ...], memoryview]] = {}
    known = {port.name: port for port in inputs}
    used = 0
    for entry in told["inputs"]:
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str) or name not in known:
            raise RequestFault("", f"unknown input {quoted(name)}", suggestion(name, known, "inputs"))
        if name in found:
            raise RequestFault(f"input {name}", "is given twice", "Send it once.")
        shape = _shape(entry, known[name])
        raw, used = _input(entry, known[name], shape, binary, used)
        found[name] = shape, raw
    if missing := [name for name in known if name not in found]:
        raise RequestFault(f"input {missing[0]}", "is missing", f"Send {', '.join(known)}.")
    if used != len(binary):
        raise RequestFault(
            REQUEST,
            f"has {len(binary) - used} bytes behind its JSON that belong to no input",
            "Give each input that is sent as bytes its binary_data_size.",
        )
    counts = {shape[0] for shape, _ in found.values()}
    if len(counts) != 1:
        raise RequestFault(
            "inputs",
            f"have different first dimensions ({', '.join(map(str, sorted(counts)))})",
            "Send the same number of rows of every input.",
        )
    parameters = _parameters(told, "parameters")
    wanted = tuple(_wanted(entry, outputs) for entry in _list(told.get("outputs")))
    return InferRequest(
        str(told.get("id") or ""),
        counts.pop(),
        tuple(found[port.name][0] for port in inputs),
        tuple(found[port.name][1] for port in inputs),
        wanted,
        bool(parameters.get("binary_data_output", False)),
        _timeout_s(parameters.get("timeout")),
    )


def _list(value: Any) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise RequestFault("outputs", f"are {quoted(value)}, not a list", "Send a list, or leave them out.")
    return value


def _timeout_s(value: Any) -> float | None:
    """The protocol's timeout is in microseconds; 0 is none."""
    if value is None or value == 0:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        problem = f"is {quoted(value)}, not a number of microseconds from 0"
        raise RequestFault("parameters.timeout", problem, "Send such a number, or leave it out.")
    return float(value) / 1e6


def _parameters(entry: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    found = entry.get("parameters") or {}
    if not isinstance(found, dict):
        problem = f"is {quoted(found)}, not a JSON object"
        raise RequestFault(where, problem, "Send an object, or leave it out.")
    if "shared_memory_region" in found:
        raise RequestFault(
            where, "asks for shared memory, which is not offered", "Send the tensor with the request."
        )
    return found


def _wanted(entry: Any, outputs: Sequence[str]) -> tuple[str, bool]:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        problem = f"{quoted(entry)} is not an object with a name"
        raise RequestFault("outputs", problem, 'Send {"name": …} for each.')
    name = entry["name"]
    parameters = _parameters(entry, f"output {name}: parameters")
    if parameters.get("classification"):
        problem = "asks for the classification extension, which is not offered"
        raise RequestFault(f"output {name}", problem, "Ask for the tensor.")
    if name not in outputs:
        raise RequestFault("", f"unknown output {quoted(name)}", suggestion(name, outputs, "outputs"))
    return name, bool(parameters.get("binary_data", False))


def _shape(entry: Mapping[str, Any], port: TensorPort) -> tuple[int, ...]:
    """The shape of one input, its rows first."""
    if entry.get("datatype") != port.datatype:
        raise RequestFault(
            f"input {port.name}",
            f"has the datatype {quoted(entry.get('datatype'))}, and the model takes {port.datatype}",
            f"Send it as {port.datatype}.",
        )
    shape = entry.get("shape")
    if (
        not isinstance(shape, list)
        or not all(type(size) is int for size in shape)
        or len(shape) != 1 + len(port.shape)
        or any(size < 0 or own not in (-1, size) for own, size in zip(port.shape, shape[1:], strict=True))
    ):
        raise RequestFault(
            f"input {port.name}",
            f"has the shape {quoted(shape)}, and the model takes {[-1, *port.shape]}",
            "Send that shape; -1 stands for any size.",
        )
    if not 1 <= shape[0] <= MOST_ROWS:
        raise too_many_rows(port.name, shape[0], MOST_ROWS)
    return tuple(shape)


def too_many_rows(name: str, rows: int, most: int) -> RequestFault:
    """The fault of an input with none, or with more than a request may have."""
    return RequestFault(f"input {name}", f"has {rows} rows, outside 1 to {most}", "Send the rows in parts.")


def _input(
    entry: Mapping[str, Any], port: TensorPort, shape: tuple[int, ...], binary: memoryview, used: int
) -> tuple[memoryview, int]:
    """The bytes of one input, and how many of the binary bytes are used then."""
    size = math.prod(shape) * SIZES[port.datatype]
    given = _parameters(entry, f"input {port.name}: parameters").get("binary_data_size")
    if given is not None:
        if given != size or isinstance(given, bool):
            raise RequestFault(
                f"input {port.name}: parameters.binary_data_size",
                f"is {quoted(given)}, and its shape takes {size} bytes",
                "Send the bytes of all its numbers.",
            )
        if used + size > len(binary):
            problem = f"has {len(binary) - used} bytes in the body, and its shape takes {size}"
            raise RequestFault(f"input {port.name}", problem, "Send the bytes of all its numbers.")
        return binary[used : used + size], used + size
    return _of_json(entry.get("data"), shape, port), used


def _of_json(data: Any, shape: tuple[int, ...], port: TensorPort) -> memoryview:
    """Numbers of a JSON list, flat or nested, as bytes."""
    if not isinstance(data, list):
        problem = "has neither a list of data nor a binary_data_size"
        raise RequestFault(f"input {port.name}", problem, "Send one of them.")
    try:
        array = np.asarray(data)
        if port.datatype == "UINT64" and array.dtype.kind == "f":
            array = _whole(data, array)
        kind = "b" if port.datatype == "BOOL" else "iu" if "INT" in port.datatype else "iuf"
        if array.dtype.kind not in kind:
            told = {"U": "text", "O": "other things than numbers"}.get(array.dtype.kind, array.dtype)
            raise ValueError(f"it holds {told}")
        if array.size != math.prod(shape) or array.shape not in (shape, (array.size,)):
            raise ValueError(f"it holds {array.size} numbers in the shape {list(array.shape)}")
        if port.datatype == "BF16":
            return memoryview(_as_bf16(array.astype(np.float32)).tobytes())
        target = np.dtype(OF_NUMPY[port.datatype])
        if array.dtype.kind in "iu" and target.kind in "iu" and array.size:
            limits = np.iinfo(target)
            for end in (int(array.min()), int(array.max())):
                if not limits.min <= end <= limits.max:
                    raise ValueError(f"it holds {end}")
        return memoryview(array.astype(target).tobytes())
    except (ValueError, OverflowError, TypeError) as error:
        raise RequestFault(
            f"input {port.name}: data",
            f"cannot be read as {port.datatype} of the shape {list(shape)}: {error}",
            "Send numbers of that datatype and shape.",
        ) from error


def _whole(data: list[Any], floats: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Whole numbers as such where numpy made floats of them: it does of some below 2^63 and some from there on."""
    given = np.asarray(data, dtype=object)
    return given.astype(np.uint64) if all(type(one) is int for one in given.flat) else floats


def _as_bf16(array: np.ndarray[Any, np.dtype[np.float32]]) -> Any:
    """The upper halves, rounded to the nearest even."""
    bits = array.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def response(
    request: InferRequest, model: str, outputs: Sequence[TensorPort], found: Sequence[bytes | memoryview]
) -> tuple[bytes, int | None]:
    """The body of an answer to a request for these outputs, and the length of its JSON where bytes follow."""
    place = {port.name: index for index, port in enumerate(outputs)}
    wanted = request.wanted or tuple((port.name, request.binary) for port in outputs)
    entries, blocks = [], []
    for name, binary in wanted:
        port, raw = outputs[place[name]], found[place[name]]
        entry: dict[str, Any] = {
            "name": name,
            "datatype": port.datatype,
            "shape": [request.rows, *port.shape],
        }
        if binary:
            entry["parameters"] = {"binary_data_size": len(raw)}
            blocks.append(raw)
        else:
            entry["data"] = _numbers(raw, port.datatype)
        entries.append(entry)
    told = {"model_name": model, "model_version": "1", "outputs": entries}
    if request.id:
        told["id"] = request.id
    text = json.dumps(told, separators=(",", ":")).encode()
    return (b"".join([text, *blocks]), len(text)) if blocks else (text, None)


def _numbers(raw: bytes | memoryview, datatype: str) -> list[Any]:
    if datatype == "BF16":
        wide = np.frombuffer(raw, dtype=np.uint16).astype(np.uint32) << 16
        found: list[Any] = wide.view(np.float32).tolist()
        return found
    numbers: list[Any] = np.frombuffer(raw, dtype=OF_NUMPY[datatype]).tolist()
    return numbers


def port_of(told: Mapping[str, Any]) -> TensorPort:
    """A port as a worker tells it."""
    return TensorPort(
        str(told["name"]), str(told["datatype"]), tuple(int(size) for size in told["shape"][1:])
    )


def check_rows(
    shapes: Sequence[Sequence[int]],
    dtypes: Sequence[str],
    payload: bytes,
    rows: int,
    ports: Sequence[TensorPort],
) -> list[memoryview]:
    """The outputs' bytes of a batch. Raises ValueError where they are not those that the model said it gives."""
    if not len(shapes) == len(dtypes) == len(ports):
        raise ValueError(f"{len(shapes)} tensors, not {len(ports)}")
    found, at = [], 0
    for shape, dtype, port in zip(shapes, dtypes, ports, strict=True):
        if tuple(shape) != (rows, *port.shape) or OF_TORCH.get(dtype) != port.datatype:
            raise ValueError(
                f"{port.name} came as {dtype} {list(shape)}, not as {port.datatype} {[rows, *port.shape]}"
            )
        size = rows * port.row_bytes
        found.append(memoryview(payload)[at : at + size])
        at += size
    if at != len(payload):
        raise ValueError("an answer of another length")
    return found
