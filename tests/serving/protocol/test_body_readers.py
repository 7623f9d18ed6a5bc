"""Bodies read in a process of their own: the same requests, within memory and time."""

import asyncio
import json
import os
import signal
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest

from torchsplit_core.serving.protocol import body_readers as module
from torchsplit_core.serving.protocol.body_readers import BodyReaders
from torchsplit_core.serving.protocol.tensors import InferRequest, RequestFault, TensorPort
from torchsplit_core.serving.settings import RequestLimits

PORTS = [TensorPort("x", "FP32", (4,))]
FREE = [TensorPort("x", "FP32", (-1,))]
ZLIB_HEADER_BYTES = 2  # RFC 1950


@asynccontextmanager
async def reading(limits: RequestLimits | None = None) -> AsyncIterator[BodyReaders]:
    """Readers that end with the test."""
    readers = BodyReaders(limits or RequestLimits())
    try:
        yield readers
    finally:
        readers.end()


def body(rows: int) -> tuple[bytes, bytes]:
    """A request in JSON, and its numbers as bytes."""
    numbers = np.random.default_rng(0).random((rows, 4), dtype=np.float32)
    entry = {"name": "x", "datatype": "FP32", "shape": [rows, 4], "data": numbers.tolist()}
    told = {"id": "a", "inputs": [entry], "outputs": [{"name": "y", "parameters": {"binary_data": True}}]}
    return json.dumps(told | {"parameters": {"timeout": 1e6}}).encode(), numbers.tobytes()


async def test_what_is_read_there_is_what_is_read_here():
    async with reading() as readers:
        text, numbers = body(500)
        for packed, encoding in ((text, ""), (zlib.compress(text), "deflate")):
            found = await readers.read(packed, encoding, None, PORTS, ["y"])
            assert isinstance(found, InferRequest) and bytes(found.inputs[0]) == numbers
            assert (found.id, found.rows, found.shapes) == ("a", 500, ((500, 4),))
            assert (found.requested_outputs, found.binary, found.timeout_s) == ((("y", True),), False, 1.0)
        with pytest.raises(RequestFault, match="unknown output"):
            await readers.read(text, "", None, PORTS, ["z"])


def packed(piece: bytes, times: int) -> bytes:
    """A zlib stream of that piece so many times: packed once, for each repetition stands alone."""
    packer = zlib.compressobj()
    first = packer.compress(piece) + packer.flush(zlib.Z_FULL_FLUSH)
    return first + first[ZLIB_HEADER_BYTES:] * (times - 1)


@pytest.mark.parametrize(("text", "encoding", "words"), [
    (b'{"inputs":[' + b"{}," * 200_000 + b"{}]}", "", "bytes to read|bytes of JSON"),
    (packed(b"{}," * 100_000, 200), "deflate", "more than the"),
    (packed(bytes(10**6), 1000), "gzip", "more than the"),
    (b"[" * 300_000, "", "bytes to read|bytes of JSON"),
    (b"{" * 100_000, "", "is not JSON|bytes to read"),
    (b"\xff" * 1000, "gzip", "cannot be unpacked"),
])  # fmt: skip
async def test_what_is_made_to_cost_is_refused_before_it_does(text, encoding, words):
    async with reading() as readers:
        with pytest.raises(RequestFault, match=words) as caught:
            await readers.read(text, encoding, None, PORTS, ["y"])
        assert caught.value.status in (400, 413)


async def test_a_size_that_is_free_is_held_by_the_limits_alone():
    async with reading(RequestLimits(json_bytes=300000)) as readers:
        entry = {"name": "x", "datatype": "FP32", "shape": [1, 50_000], "data": [0.5] * 50_000}
        text = json.dumps({"inputs": [entry]}).encode()
        assert (await readers.read(text, "", None, FREE, ["y"])).shapes == ((1, 50_000),)
        with pytest.raises(RequestFault, match="bytes of JSON, of 300000"):
            await readers.read(text + b" " * 300_000, "", None, FREE, ["y"])


async def test_a_reader_that_dies_or_hangs_costs_its_request_alone(monkeypatch):
    async with reading() as readers:
        text, _ = body(100)
        await readers.read(text, "", None, PORTS, ["y"])
        (one,) = readers._free
        assert one._process is not None
        os.kill(one._process.pid, signal.SIGKILL)
        with pytest.raises(RequestFault, match="cannot be read within"):
            await readers.read(text, "", None, PORTS, ["y"])
        assert (await readers.read(text, "", None, PORTS, ["y"])).rows == 100
        (one,) = readers._free
        assert one._process is not None
        monkeypatch.setattr(module, "READ_S", 0.3)
        os.kill(one._process.pid, signal.SIGSTOP)
        with pytest.raises(RequestFault, match="cannot be read within"):
            await readers.read(text, "", None, PORTS, ["y"])
        assert one._process.poll() is not None
        monkeypatch.undo()
        assert (await readers.read(text, "", None, PORTS, ["y"])).rows == 100


async def test_a_reader_at_work_ends_with_the_server():
    async with reading() as readers:
        text, _ = body(100)
        await readers.read(text, "", None, PORTS, ["y"])
        (one,) = readers._free
        assert one._process is not None
        os.kill(one._process.pid, signal.SIGSTOP)
        read = asyncio.create_task(readers.read(text, "", None, PORTS, ["y"]))
        while readers._free:
            await asyncio.sleep(0.01)
        readers.end()
        assert one._process.poll() is not None
        with pytest.raises(RequestFault, match="cannot be read"):
            await read
