"""The server's side of the protocol: parses requests to raw rows, checks them against a model, writes responses."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import orjson

from torchsplit_core.values import InputFault, quoted, suggestion
from torchsplit_core.values.serving.datatypes import OF_NUMPY, OF_TORCH, SIZES

MOST_ROWS = 4096
"""Rows of one request."""
LONGEST_TIMEOUT_US = 1e12
"""12 days, beyond every deadline."""
LENGTH_HEADER = "inference-header-content-length"
"""Bytes of the JSON in a body, if tensors follow as bytes."""
REQUEST = "the request"
PIECE = 2**16
"""Numbers written as JSON without a pause: a few milliseconds."""
SEND_OBJECT = 'Send {"inputs": [{"name": …, "datatype": …, "shape": …, "data": …}]}.'
SEND_LENGTH = "Send the number of bytes that the JSON part of the body has."


class RequestFault(InputFault):
    """A request that is rejected, with the HTTP status and the message of its response.

    `reason` names the limit that rejected it, if one did. `headers` are sent with the response.
    """

    def __init__(
        self,
        where: str,
        problem: str,
        remedy: str,
        status: int = 400,
        reason: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(where, problem, remedy)
        self.status, self.reason = status, reason
        self.headers = headers or ({"retry-after": "1"} if status in (429, 503) else {})


@dataclass(frozen=True, slots=True)
class TensorPort:
    """An input or output in a model's metadata; `shape` is without the batch, -1 stands for a free size."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, if no size is free."""
        return math.prod(self.shape) * SIZES[self.datatype]

    def metadata(self) -> dict[str, Any]:
        """The protocol's metadata; the first dimension, the batch, is -1."""
        return {"name": self.name, "datatype": self.datatype, "shape": [-1, *self.shape]}


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A parsed request, with its inputs in the model's order.

    An input of a parsed head (`parse_head`) is the slice of its bytes in the payload, or the numbers from the JSON.
    `requested_outputs`: name and whether as bytes; if empty, all outputs are sent as `binary` says.
    """

    id: str
    rows: int
    shapes: tuple[tuple[int, ...], ...]
    inputs: tuple[Any, ...]
    requested_outputs: tuple[tuple[str, bool], ...]
    binary: bool
    timeout_s: float | None

    @property
    def reusable(self) -> bool:
        """Whether a head holds for every body with the same JSON: all inputs are bytes of the payload."""
        return all(isinstance(data, slice) for data in self.inputs)

    def with_payload(self, payload: memoryview) -> InferRequest:
        """The request of a head and the payload behind it."""
        inputs = (payload[data] if isinstance(data, slice) else data for data in self.inputs)
        return replace(self, inputs=tuple(inputs))


def parse_request(
    body: bytes | bytearray, json_bytes: int | None, inputs: Sequence[TensorPort], outputs: Sequence[str]
) -> InferRequest:
    """Parse a body whose first `json_bytes` (None: all) are JSON. Raises RequestFault."""
    text, following = split_body(body, json_bytes)
    return parse_head(text, len(following), inputs, outputs).with_payload(following)


def split_body(body: bytes | bytearray, json_bytes: int | None) -> tuple[memoryview, memoryview]:
    """The JSON of a body, and the bytes that follow. Raises RequestFault."""
    if json_bytes is not None and not 0 <= json_bytes <= len(body):
        raise RequestFault(LENGTH_HEADER, f"is {json_bytes}, and the body has {len(body)} bytes", SEND_LENGTH)
    view, at = memoryview(body), len(body) if json_bytes is None else json_bytes
    return view[:at], view[at:]


def parse_head(
    text: memoryview, following: int, inputs: Sequence[TensorPort], outputs: Sequence[str]
) -> InferRequest:
    """Parse the JSON of a request that so many bytes follow. Raises RequestFault."""
    content = _json(text)
    if not isinstance(content, dict) or not isinstance(content.get("inputs"), list):
        raise RequestFault(REQUEST, "is not a JSON object with a list of inputs", SEND_OBJECT)
    inputs_by_name: dict[str, tuple[tuple[int, ...], slice | memoryview]] = {}
    ports = {port.name: port for port in inputs}
    used = 0
    for entry in content["inputs"]:
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str) or name not in ports:
            raise RequestFault("", f"unknown input {quoted(name)}", suggestion(name, ports, "inputs"))
        if name in inputs_by_name:
            raise RequestFault(f"input {name}", "is given twice", "Send it once.")
        shape = _parse_shape(entry, ports[name])
        raw, used = _locate_input(entry, ports[name], shape, following, used)
        inputs_by_name[name] = shape, raw
    if missing := [name for name in ports if name not in inputs_by_name]:
        raise RequestFault(f"input {missing[0]}", "is missing", f"Send {', '.join(ports)}.")
    if used != following:
        raise RequestFault(
            REQUEST,
            f"has {following - used} bytes behind its JSON that belong to no input",
            "Give each input that is sent as bytes its binary_data_size.",
        )
    counts = {shape[0] for shape, _ in inputs_by_name.values()}
    if len(counts) != 1:
        raise RequestFault(
            "inputs",
            f"have different first dimensions ({', '.join(map(str, sorted(counts)))})",
            "Send the same number of rows of every input.",
        )
    parameters = _parameters(content, "parameters")
    requested = tuple(_parse_output(entry, outputs) for entry in _list(content.get("outputs")))
    return InferRequest(
        str(content.get("id") or ""),
        counts.pop(),
        tuple(inputs_by_name[port.name][0] for port in inputs),
        tuple(inputs_by_name[port.name][1] for port in inputs),
        requested,
        bool(parameters.get("binary_data_output", False)),
        _timeout_s(parameters.get("timeout")),
    )


def _json(text: memoryview) -> Any:
    try:
        return orjson.loads(text)
    except ValueError:
        pass
    try:
        # json accepts what orjson does not: NaN, and integers of more than 64 bits.
        return json.loads(bytes(text))
    except (ValueError, RecursionError) as error:
        raise RequestFault(REQUEST, f"is not JSON: {error}", SEND_OBJECT) from error


def _list(value: Any) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise RequestFault("outputs", f"are {quoted(value)}, not a list", "Send a list, or leave them out.")
    return value


def _timeout_s(value: Any) -> float | None:
    """The timeout in seconds from the protocol's microseconds; None for 0."""
    if value is None:
        return None
    # NaN would disorder the event loop's timers; a long integer does not fit into a float.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LONGEST_TIMEOUT_US:
        problem = f"is {quoted(value)}, not a number of microseconds from 0 to {LONGEST_TIMEOUT_US:.0f}"
        raise RequestFault("parameters.timeout", problem, "Send such a number, or leave it out.")
    return float(value) / 1e6 or None


def _parameters(entry: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    parameters = entry.get("parameters") or {}
    if not isinstance(parameters, dict):
        problem = f"is {quoted(parameters)}, not a JSON object"
        raise RequestFault(where, problem, "Send an object, or leave it out.")
    if "shared_memory_region" in parameters:
        raise RequestFault(
            where, "asks for shared memory, which is not offered", "Send the tensor with the request."
        )
    return parameters


def _parse_output(entry: Any, outputs: Sequence[str]) -> tuple[str, bool]:
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


def _parse_shape(entry: Mapping[str, Any], port: TensorPort) -> tuple[int, ...]:
    """The shape of an input, with its rows."""
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
        or any(
            size < 0 or expected not in (-1, size)
            for expected, size in zip(port.shape, shape[1:], strict=True)
        )
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
    """The fault for an input with no rows or too many."""
    return RequestFault(f"input {name}", f"has {rows} rows, outside 1 to {most}", "Send the rows in parts.")


def _locate_input(
    entry: Mapping[str, Any], port: TensorPort, shape: tuple[int, ...], following: int, used: int
) -> tuple[slice | memoryview, int]:
    """The slice of an input's bytes, or its numbers from the JSON; and the end of the used bytes."""
    size = math.prod(shape) * SIZES[port.datatype]
    stated_bytes = _parameters(entry, f"input {port.name}: parameters").get("binary_data_size")
    if stated_bytes is not None:
        if stated_bytes != size or isinstance(stated_bytes, bool):
            raise RequestFault(
                f"input {port.name}: parameters.binary_data_size",
                f"is {quoted(stated_bytes)}, and its shape takes {size} bytes",
                "Send the bytes of all its numbers.",
            )
        if used + size > following:
            problem = f"has {following - used} bytes in the body, and its shape takes {size}"
            raise RequestFault(f"input {port.name}", problem, "Send the bytes of all its numbers.")
        return slice(used, used + size), used + size
    return _encode_numbers(entry.get("data"), shape, port), used


def _encode_numbers(data: Any, shape: tuple[int, ...], port: TensorPort) -> memoryview:
    """The bytes of the numbers in a JSON list, flat or nested."""
    if not isinstance(data, list):
        problem = "has neither a list of data nor a binary_data_size"
        raise RequestFault(f"input {port.name}", problem, "Send one of them.")
    try:
        array = np.asarray(data)
        if port.datatype == "UINT64" and array.dtype.kind == "f":
            array = _as_uint64(data, array)
        kind = "b" if port.datatype == "BOOL" else "iu" if "INT" in port.datatype else "iuf"
        if array.dtype.kind not in kind:
            content = {"U": "text", "O": "other things than numbers"}.get(array.dtype.kind, array.dtype)
            raise ValueError(f"it holds {content}")
        if array.size != math.prod(shape) or array.shape not in (shape, (array.size,)):
            raise ValueError(f"it holds {array.size} numbers in the shape {list(array.shape)}")
        if port.datatype == "BF16":
            return memoryview(_as_bf16(array.astype(np.float32)).tobytes())
        target = np.dtype(OF_NUMPY[port.datatype])
        if array.dtype.kind in "iu" and target.kind in "iu" and array.size:
            limits = np.iinfo(target)
            for extreme in (int(array.min()), int(array.max())):
                if not limits.min <= extreme <= limits.max:
                    raise ValueError(f"it holds {extreme}")
        return memoryview(array.astype(target).tobytes())
    except (ValueError, OverflowError, TypeError) as error:
        raise RequestFault(
            f"input {port.name}: data",
            f"cannot be read as {port.datatype} of the shape {list(shape)}: {error}",
            "Send numbers of that datatype and shape.",
        ) from error


def _as_uint64(data: list[Any], floats: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Integers that numpy turned into floats, as it does if some are below 2^63 and some above."""
    objects = np.asarray(data, dtype=object)
    return objects.astype(np.uint64) if all(type(value) is int for value in objects.flat) else floats


def _as_bf16(array: np.ndarray[Any, np.dtype[np.float32]]) -> Any:
    """The upper half of each float32, rounded to nearest even."""
    bits = array.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def encode_response(
    request: InferRequest, model: str, outputs: Sequence[TensorPort], tensors: Sequence[bytes | memoryview]
) -> tuple[bytes, int | None]:
    """The body of a response, and the length of its JSON if bytes follow. Raises RequestFault."""
    text, blocks = response_blocks(request, model, outputs, tensors)
    return (b"".join([text, *blocks]), len(text)) if blocks else (text, None)


def response_blocks(
    request: InferRequest, model: str, outputs: Sequence[TensorPort], tensors: Sequence[bytes | memoryview]
) -> tuple[bytes, list[bytes | memoryview]]:
    """The JSON of a response and the tensors that follow as bytes. Raises RequestFault for NaN or infinity in JSON."""
    entries, blocks = [], []
    for number, binary in _requested_outputs(request, outputs):
        port, raw = outputs[number], tensors[number]
        shape = ",".join(map(str, (request.rows, *port.shape)))
        start = f'{{"name":{_json_text(port.name)},"datatype":"{port.datatype}","shape":[{shape}],'
        if binary:
            entries.append(f'{start}"parameters":{{"binary_data_size":{len(raw)}}}}}'.encode())
            blocks.append(raw)
        else:
            entries.append(b"".join((start.encode(), b'"data":[', _json_numbers(raw, port), b"]}")))
    id_ = f',"id":{_json_text(request.id)}' if request.id else ""
    head = f'{{"model_name":{_json_text(model)},"model_version":"1"{id_},"outputs":['.encode()
    return b"".join((head, b",".join(entries), b"]}")), blocks


def all_binary(request: InferRequest) -> bool:
    """Whether all outputs are requested as bytes."""
    return (
        all(binary for _, binary in request.requested_outputs)
        if request.requested_outputs
        else request.binary
    )


def _requested_outputs(request: InferRequest, outputs: Sequence[TensorPort]) -> Iterator[tuple[int, bool]]:
    """Index of each requested output, and whether as bytes."""
    if not request.requested_outputs:
        yield from ((number, request.binary) for number in range(len(outputs)))
        return
    index = {port.name: number for number, port in enumerate(outputs)}
    for name, binary in request.requested_outputs:
        yield index[name], binary


def _json_text(value: str) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # half a surrogate pair has no UTF-8
        return json.dumps(value)


def _json_numbers(raw: bytes | memoryview, port: TensorPort) -> bytes:
    """The numbers of a tensor as JSON without brackets; written in pieces, so that other threads can run."""
    if port.datatype == "BF16":
        wide = np.frombuffer(raw, dtype=np.uint16).astype(np.uint32) << 16
        array: np.ndarray[Any, Any] = wide.view(np.float32)
    else:
        array = np.frombuffer(raw, dtype=OF_NUMPY[port.datatype])
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        problem = "holds NaN or infinity, for which JSON has no number"
        raise RequestFault(f"output {port.name}", problem, "Ask for it as bytes (binary_data).", 400)
    # float64 keeps the exact value of every float.
    kind = np.float64 if array.dtype.kind == "f" else array.dtype
    pieces = (array[at : at + PIECE].astype(kind) for at in range(0, len(array), PIECE))
    return b",".join(orjson.dumps(piece, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1] for piece in pieces)


def parse_port(metadata: Mapping[str, Any]) -> TensorPort:
    """The port in a worker's metadata."""
    return TensorPort(
        str(metadata["name"]), str(metadata["datatype"]), tuple(int(size) for size in metadata["shape"][1:])
    )


def split_outputs(
    shapes: Sequence[Sequence[int]],
    dtypes: Sequence[str],
    payload: bytes | memoryview,
    rows: int,
    ports: Sequence[TensorPort],
) -> list[memoryview]:
    """The bytes of each output of a batch. Raises ValueError if they differ from the model's ports."""
    if not len(shapes) == len(dtypes) == len(ports):
        raise ValueError(f"{len(shapes)} tensors, not {len(ports)}")
    blocks, offset = [], 0
    for shape, dtype, port in zip(shapes, dtypes, ports, strict=True):
        if tuple(shape) != (rows, *port.shape) or OF_TORCH.get(dtype) != port.datatype:
            raise ValueError(
                f"{port.name} came as {dtype} {list(shape)}, not as {port.datatype} {[rows, *port.shape]}"
            )
        size = rows * port.row_bytes
        blocks.append(memoryview(payload)[offset : offset + size])
        offset += size
    if offset != len(payload):
        raise ValueError("an answer of another length")
    return blocks
