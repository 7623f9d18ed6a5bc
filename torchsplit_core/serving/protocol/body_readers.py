"""Processes that parse slow bodies: compressed ones, and those with more than INLINE_JSON bytes of JSON.

Python holds its lock while it decompresses and parses JSON, so a thread would block every other response. A process
has limits of memory and time and a low priority; it is started with the first such body. `framing` describes the
messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from torchsplit_core.bundle import python_path
from torchsplit_core.serving.framing import LENGTH_PREFIX, encode_header, frame_lengths
from torchsplit_core.serving.protocol.http_body import (
    MAX_PARSE_MEMORY,
    check_json,
    decompress,
    is_compressed,
    max_body_bytes,
)
from torchsplit_core.serving.protocol.tensors import (
    REQUEST,
    InferRequest,
    RequestFault,
    TensorPort,
    parse_request,
)
from torchsplit_core.serving.settings import RequestLimits

INLINE_JSON = 64 * 1024
"""Parsing so many bytes of JSON takes about 2 ms."""
MAX_READERS = 2
READ_S = 20.0
"""Time limit for a body."""
BASE_MEMORY = 2**30
"""Address space besides a body's: Python with numpy."""
NICE = 5


def is_quick_to_read(body: bytes | bytearray, encoding: str, json_bytes: int | None) -> bool:
    """Whether a body is not compressed and its JSON (None: all of it) is short."""
    return not is_compressed(encoding) and (len(body) if json_bytes is None else json_bytes) <= INLINE_JSON


def read_body(
    body: Any,
    encoding: str,
    json_bytes: int | None,
    inputs: Sequence[TensorPort],
    outputs: Sequence[str],
    limits: RequestLimits,
) -> InferRequest:
    """Decompress, check and parse a body. Raises RequestFault."""
    plain = decompress(body, encoding, max_body_bytes(inputs, limits))
    check_json(memoryview(plain)[:json_bytes], inputs, limits)
    return parse_request(plain, json_bytes, inputs, outputs)


class BodyReaders:
    """Up to MAX_READERS processes, each with one body at a time."""

    def __init__(self, limits: RequestLimits) -> None:
        self.limits = limits
        self._free: list[_ReaderProcess] = []
        self._all: set[_ReaderProcess] = set()
        self._slots = asyncio.Semaphore(MAX_READERS)

    async def read(
        self,
        body: Any,
        encoding: str,
        json_bytes: int | None,
        inputs: Sequence[TensorPort],
        outputs: Sequence[str],
    ) -> InferRequest:
        """As `read_body`. Raises RequestFault, also if it exceeds the time or memory limit."""
        head = {
            "encoding": encoding,
            "length": json_bytes,
            "inputs": [[port.name, port.datatype, port.shape] for port in inputs],
            "outputs": list(outputs),
        }
        async with self._slots:
            reader = self._free.pop() if self._free else _ReaderProcess(self.limits)
            self._all.add(reader)
            try:
                async with asyncio.timeout(READ_S):
                    result = await reader.read(head, body)
            except (OSError, EOFError, ValueError, TimeoutError):
                self._end(reader)
                problem = f"cannot be read within {READ_S:g} s and the memory for it"
                raise RequestFault(
                    REQUEST, problem, "Send its tensors as bytes, or the rows in parts.", 413, "reading"
                ) from None
            except BaseException:
                self._end(reader)
                raise
            self._free.append(reader)
        if isinstance(result, RequestFault):
            raise result
        return result

    def end(self) -> None:
        """End all processes, idle or not."""
        for reader in tuple(self._all):
            self._end(reader)
        self._free.clear()

    def _end(self, reader: _ReaderProcess) -> None:
        self._all.discard(reader)
        reader.end()


class _ReaderProcess:
    """A reader process."""

    def __init__(self, limits: RequestLimits) -> None:
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def read(self, head: dict[str, Any], body: Any) -> InferRequest | RequestFault:
        if self._process is None:
            await self._start()
        assert self._reader is not None and self._writer is not None
        self._writer.write(encode_header(head, len(body)))
        self._writer.write(body)
        await self._writer.drain()
        size, following = frame_lengths(await self._reader.readexactly(LENGTH_PREFIX.size))
        reply = json.loads(await self._reader.readexactly(size))
        payload = memoryview(await self._reader.readexactly(following))
        return _decode_reply(reply, payload)

    async def _start(self) -> None:
        local, remote = socket.socketpair()
        limits = self._limits
        with remote:
            self._process = subprocess.Popen(
                [
                    sys.executable, "-m", __name__,
                    str(remote.fileno()), str(limits.body_bytes), str(limits.json_bytes),
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=(remote.fileno(),),
                env=os.environ | {"PYTHONPATH": python_path(), "OPENBLAS_NUM_THREADS": "1"},
            )  # fmt: skip
        local.setblocking(False)
        self._reader, self._writer = await asyncio.open_connection(sock=local, limit=2**20)

    def end(self) -> None:
        """Kill the process."""
        if self._writer is not None:
            self._writer.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def _decode_reply(head: dict[str, Any], payload: memoryview) -> InferRequest | RequestFault:
    if "fault" in head:
        return RequestFault(*head["fault"])
    offset, inputs = 0, []
    for size in head["sizes"]:
        inputs.append(payload[offset : offset + size])
        offset += size
    return InferRequest(
        head["id"],
        head["rows"],
        tuple(map(tuple, head["shapes"])),
        tuple(inputs),
        tuple((name, binary) for name, binary in head["wanted"]),
        head["binary"],
        head["timeout_s"],
    )


def main(descriptor: int, limits: RequestLimits) -> None:
    """Read bodies until the parent closes the socket."""
    os.nice(NICE)
    max_memory = BASE_MEMORY + 2 * limits.body_bytes + MAX_PARSE_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (max_memory, max_memory))
    with socket.socket(fileno=descriptor) as stream, stream.makefile("rb") as incoming:
        while start := incoming.read(LENGTH_PREFIX.size):
            size, following = frame_lengths(start)
            command = json.loads(incoming.read(size))
            head, blocks = _read_command(command, incoming.read(following), limits)
            stream.sendall(encode_header(head, sum(map(len, blocks))))
            for block in blocks:
                stream.sendall(block)


def _read_command(
    command: dict[str, Any], body: bytes, limits: RequestLimits
) -> tuple[dict[str, Any], Sequence[Any]]:
    ports = [TensorPort(name, datatype, tuple(shape)) for name, datatype, shape in command["inputs"]]
    try:
        parsed = read_body(body, command["encoding"], command["length"], ports, command["outputs"], limits)
    except RequestFault as fault:
        return {"fault": [*fault.parts, fault.status, fault.reason]}, ()
    except MemoryError:
        remedy = "Send its tensors as bytes, or the rows in parts."
        return {"fault": [REQUEST, "takes more memory to read than it may", remedy, 413, "reading"]}, ()
    head = {
        "id": parsed.id,
        "rows": parsed.rows,
        "shapes": parsed.shapes,
        "sizes": [len(tensor) for tensor in parsed.inputs],
        "wanted": parsed.requested_outputs,
        "binary": parsed.binary,
        "timeout_s": parsed.timeout_s,
    }
    return head, parsed.inputs


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(int(sys.argv[1]), RequestLimits(body_bytes=int(sys.argv[2]), json_bytes=int(sys.argv[3])))
