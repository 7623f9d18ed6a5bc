"""Sends named values between stages so that the receiver computes the same bits as the sender would.

The strides of a tensor and its offset within a cache line can decide which kernel computes a result, and so its last
bits. A tensor therefore arrives with the same strides and the same offset from a multiple of 64 bytes. Elements that
an expanded dimension repeats are sent once.

A message is a length (8 bytes, little-endian), a JSON header of that length, and the bytes of the tensors in order.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from io import BufferedReader
from typing import Any

import torch

ALIGNMENT = 64
"""The alignment of torch's allocations on a CPU (c10 gAlignment)."""
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


@dataclass(frozen=True, slots=True)
class _Layout:
    """The memory layout of a tensor; `narrow` is its shape with every expanded dimension reduced to 1."""

    shape: tuple[int, ...]
    narrow: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def order(self) -> tuple[int, ...]:
        """Dimensions from the longest stride to the shortest."""
        return tuple(sorted(range(len(self.shape)), key=lambda d: -self.strides[d]))

    @property
    def sent_shape(self) -> tuple[int, ...]:
        """The shape in which the elements are sent."""
        return tuple(self.narrow[d] for d in self.order)

    @property
    def span(self) -> int:
        """Number of elements from the first in memory to the last."""
        if 0 in self.shape:
            return 0
        return 1 + sum((size - 1) * stride for size, stride in zip(self.narrow, self.strides, strict=True))

    @property
    def whole(self) -> bool:
        """Whether the whole span is sent as it is: it has no gaps, or its elements overlap (windows)."""
        filled, overlaps = 1, False
        for d in reversed(self.order):
            if self.narrow[d] > 1:
                overlaps |= self.strides[d] < filled
                filled += (self.narrow[d] - 1) * self.strides[d]
        return overlaps or filled == math.prod(self.narrow)


def encode_values(values: Mapping[str, Any]) -> list[bytes | memoryview]:
    """A message, in blocks. Raises TypeError for what is neither a number nor a dense tensor on the CPU."""
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
    header = json.dumps(entries).encode()
    return [_LENGTH.pack(len(header)) + header, *payload]


def receive_values(stream: BufferedReader) -> dict[str, Any]:
    """The values of the next message. Raises EOFError where the stream ends within it, or sends no message."""
    start = bytearray(_LENGTH.size)
    receive_exactly(stream, memoryview(start))
    (length,) = _LENGTH.unpack(start)
    if length > LONGEST_HEADER:
        raise EOFError("a header too long")
    header = bytearray(length)
    receive_exactly(stream, memoryview(header))
    return {
        entry["name"]: entry["number"] if "number" in entry else _decode(stream, entry)
        for entry in json.loads(header)
    }


def _encode(tensor: torch.Tensor) -> tuple[dict[str, Any], memoryview | None]:
    """The header entry and the bytes of a tensor; a dense tensor is not copied."""
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


def _decode(stream: BufferedReader, entry: Mapping[str, Any]) -> torch.Tensor:
    """Read a tensor with this header entry from the stream."""
    dtype = DTYPES[entry["dtype"]]
    layout = _Layout(tuple(entry["shape"]), tuple(entry["narrow"]), tuple(entry["strides"]))
    buffer = torch.empty(ALIGNMENT + layout.span * dtype.itemsize, dtype=torch.uint8)
    start = (int(entry["phase"]) - buffer.data_ptr()) % ALIGNMENT
    elements = buffer[start : start + layout.span * dtype.itemsize].view(dtype)
    if layout.span == 0:
        return elements.as_strided(layout.shape, layout.strides)
    offset = elements.storage_offset()
    if layout.whole:
        receive_exactly(stream, memoryview(elements.view(torch.uint8).numpy()))
    else:
        dense = torch.empty(layout.sent_shape, dtype=dtype)
        receive_exactly(stream, memoryview(dense.reshape(-1).view(torch.uint8).numpy()))
        elements.as_strided(layout.narrow, layout.strides, offset).permute(layout.order).copy_(dense)
    return elements.as_strided(layout.shape, layout.strides, offset)


def receive_exactly(stream: BufferedReader, buffer: memoryview) -> None:
    """Fill the buffer. Raises EOFError where the stream ends before."""
    if stream.readinto(buffer) != len(buffer):
        raise EOFError("closed within a message")
