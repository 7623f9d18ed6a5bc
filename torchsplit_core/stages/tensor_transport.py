"""Named values over a stream socket, so that the receiver computes to the bit what the sender would.

Which kernel a result comes from, and so its last bits, can depend on strides and on where a
tensor starts within a cache line. A tensor therefore arrives with the strides that it had and
at the same offset from a multiple of 64 bytes. Repeated elements (expanded dimensions) are sent once.

A message is a length (8 bytes, little-endian), a JSON header of that length, and the bytes of
its tensors in order.
"""

from __future__ import annotations

import json
import math
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

ALIGNMENT = 64
"""What torch aligns its own allocations on a CPU to (c10 gAlignment)."""
LONGEST_HEADER = 16 * 2**20
_LENGTH = struct.Struct("<Q")
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128,
        torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
        torch.bool, torch.float8_e4m3fn, torch.float8_e5m2,
    )
}  # fmt: skip


class StreamClosed(Exception):
    """The other end closed the stream: between two messages (`clean`) or within one."""

    def __init__(self, *, clean: bool) -> None:
        super().__init__("closed" if clean else "closed within a message")
        self.clean = clean


@dataclass(frozen=True, slots=True)
class _Layout:
    """How a tensor lies in memory: `narrow` is its shape with every expanded dimension once."""

    shape: tuple[int, ...]
    narrow: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def order(self) -> tuple[int, ...]:
        """Its dimensions from the longest stride to the shortest."""
        return tuple(sorted(range(len(self.shape)), key=lambda d: -self.strides[d]))

    @property
    def sent_shape(self) -> tuple[int, ...]:
        """The shape of the bytes on the wire."""
        return tuple(self.narrow[d] for d in self.order)

    @property
    def span(self) -> int:
        """Elements from its first in memory to its last."""
        if 0 in self.shape:
            return 0
        return 1 + sum((size - 1) * stride for size, stride in zip(self.narrow, self.strides, strict=True))

    @property
    def whole(self) -> bool:
        """Whether all of its span is sent as it lies: it has no gaps, or elements of it overlap (windows)."""
        filled, overlaps = 1, False
        for d in reversed(self.order):
            if self.narrow[d] > 1:
                overlaps |= self.strides[d] < filled
                filled += (self.narrow[d] - 1) * self.strides[d]
        return overlaps or filled == math.prod(self.narrow)


def send_values(stream: socket.socket, number: int, values: Mapping[str, Any]) -> int:
    """Send a message; the bytes of its tensors.

    Raises OSError where the other end is gone, TypeError for what is neither a number nor a dense tensor on the CPU.
    """
    entries: list[dict[str, Any]] = []
    payload: list[memoryview] = []
    for name, value in values.items():
        if isinstance(value, torch.Tensor):
            entry, content = _encode(value)
            entries.append({"name": name, **entry})
            if content is not None:
                payload.append(content)
        elif isinstance(value, (bool, int, float)):
            entries.append({"name": name, "number": value})
        else:
            raise TypeError(f"{name} is a {type(value).__name__}: tensors on the CPU and numbers are sent")
    header = json.dumps({"number": number, "values": entries}).encode()
    stream.sendall(_LENGTH.pack(len(header)) + header)
    for content in payload:
        stream.sendall(content)
    return sum(len(content) for content in payload)


def receive_values(stream: socket.socket) -> tuple[int, dict[str, Any]]:
    """The next message: its number and its values. Raises Closed, and OSError for a time-out of the socket."""
    start = bytearray(_LENGTH.size)
    _receive_exactly(stream, memoryview(start), first=True)
    (length,) = _LENGTH.unpack(start)
    if length > LONGEST_HEADER:
        raise StreamClosed(clean=False)
    text = bytearray(length)
    _receive_exactly(stream, memoryview(text))
    header = json.loads(text)
    values: dict[str, Any] = {}
    for entry in header["values"]:
        values[entry["name"]] = entry["number"] if "number" in entry else _decode(stream, entry)
    return header["number"], values


def _encode(tensor: torch.Tensor) -> tuple[dict[str, Any], memoryview | None]:
    """Its description and its bytes, without a copy where it is dense."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout is not torch.strided or tensor.device.type != "cpu" or dtype not in DTYPES:
        raise TypeError(
            f"a {tensor.layout} tensor of {dtype} on {tensor.device}: dense tensors on the CPU are sent"
        )
    shape, strides = tuple(tensor.shape), tensor.stride()
    narrow = tuple(1 if stride == 0 else size for size, stride in zip(shape, strides, strict=True))
    layout = _Layout(shape, narrow, strides)
    entry = {"dtype": dtype, "shape": shape, "narrow": narrow, "strides": strides}
    if layout.span == 0:
        return {**entry, "phase": 0}, None
    if layout.whole:
        sent = tensor.as_strided((layout.span,), (1,), tensor.storage_offset())
    else:
        sent = tensor.as_strided(narrow, strides, tensor.storage_offset()).permute(layout.order).contiguous()
    content = memoryview(sent.reshape(-1).view(torch.uint8).numpy())
    return {**entry, "phase": tensor.data_ptr() % ALIGNMENT}, content


def _decode(stream: socket.socket, entry: Mapping[str, Any]) -> torch.Tensor:
    """A tensor from its description and the stream."""
    dtype = DTYPES[entry["dtype"]]
    layout = _Layout(tuple(entry["shape"]), tuple(entry["narrow"]), tuple(entry["strides"]))
    buffer = torch.empty(ALIGNMENT + layout.span * dtype.itemsize, dtype=torch.uint8)
    start = (int(entry["phase"]) - buffer.data_ptr()) % ALIGNMENT
    elements = buffer[start : start + layout.span * dtype.itemsize].view(dtype)
    if layout.span == 0:
        return elements.as_strided(layout.shape, layout.strides)
    offset = elements.storage_offset()
    if layout.whole:
        _receive_exactly(stream, memoryview(elements.view(torch.uint8).numpy()))
    else:
        dense = torch.empty(layout.sent_shape, dtype=dtype)
        _receive_exactly(stream, memoryview(dense.reshape(-1).view(torch.uint8).numpy()))
        elements.as_strided(layout.narrow, layout.strides, offset).permute(layout.order).copy_(dense)
    return elements.as_strided(layout.shape, layout.strides, offset)


def _receive_exactly(stream: socket.socket, buffer: memoryview, *, first: bool = False) -> None:
    """Read exactly that many bytes."""
    done = 0
    while done < len(buffer):
        count = stream.recv_into(buffer[done:])
        if not count:
            raise StreamClosed(clean=first and done == 0)
        done += count
