"""The process of one worker: load, warm up, then a batch at a time, until the front ends.

Run by `isolation.launch` as `serve_in_child`. It tells the front of itself in JSON lines on its control descriptor:
`{"ready": {inputs, outputs}}`, `{"fault": [where, problem, remedy]}`; batches cross as `messages` says.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from torchsplit_core.serving.framing import LENGTH_PREFIX, encode_header, frame_lengths
from torchsplit_core.serving.worker_connection import COALESCE_BYTES
from torchsplit_core.values import InputFault, Progress


def serve_in_child(request: dict[str, Any], progress: Progress) -> NoReturn:
    """Serve until the front closes the socket. Executes the model's code."""
    control = os.fdopen(request["control"], "w", encoding="utf-8")

    def send_status(kind: str, content: Any) -> None:
        control.write(json.dumps({kind: content}) + "\n")
        control.flush()

    status = 1
    try:
        _serve(request, send_status)
        status = 0
    except InputFault as fault:
        send_status("fault", fault.parts)
    except (BrokenPipeError, ConnectionResetError):
        status = 0  # the front is gone
    except Exception as error:  # noqa: BLE001 - the edge of the process: whatever it was, the front is told
        from torchsplit_core.model_source import describe_exception

        send_status("fault", [request["id"], describe_exception(error), "Mend the model's code."])
    os._exit(status)


def _serve(request: dict[str, Any], send_status: Any) -> None:
    _pin_to(request["cores"])
    import torch

    from torchsplit_core.profiling.measuring.accelerator import open_device
    from torchsplit_core.serving.model_runner import ModelRunner, StageRunner

    with open_device(request["device"]) as opened:
        model: ModelRunner | StageRunner
        if request["directory"]:
            where, position = request["directory"], request["position"]
            model = StageRunner(where, position, request["source"], request["trust"], opened.torch_device)
        else:
            model = ModelRunner(request["source"], request["trust"], opened.torch_device)
        stream = BufferedSocket(socket.socket(fileno=request["socket"]))
        torch.set_grad_enabled(False)
        if isinstance(model, ModelRunner):
            model.warm_up(request["max_batch"])
        ports = {"inputs": model.inputs, "outputs": model.outputs}
        ready: dict[str, Any] = {kind: [port.metadata() for port in group] for kind, group in ports.items()}
        send_status("ready", ready | {"example": _example(model)})
        while (message := _receive_batch(stream, model)) is not None:
            head, following = _run_batch(model, message)
            total = sum(map(len, following))
            blocks = [encode_header(head, total), *following]
            # What is small goes out in one piece: each wakes the front up.
            for block in [b"".join(blocks)] if total < COALESCE_BYTES else blocks:
                stream.sendall(block)


def _example(model: Any) -> list[str]:
    """The first row of the model's own example, each input's bytes in base64: what a load test sends."""
    import torch

    if model.example is None:
        return []
    rows = [tensor[:1].contiguous().reshape(-1).view(torch.uint8).numpy() for tensor in model.example.at(2)]
    return [base64.b64encode(row.tobytes()).decode() for row in rows]


def _pin_to(cores: Sequence[int]) -> None:
    """Every thread of this process to these cores, so that `open_device` counts them alone."""
    if cores:
        for task in Path("/proc/self/task").iterdir():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(task.name), cores)


class BufferedSocket:
    """The front's messages: small ones are read in one go, since one comes at a time."""

    def __init__(self, connection: socket.socket) -> None:
        self.sendall = connection.sendall
        self._connection = connection
        self._buffered = memoryview(b"")

    def recv_into(self, buffer: memoryview) -> int:
        """As a socket's; 0 at its end."""
        if not self._buffered and len(buffer) < COALESCE_BYTES:
            self._buffered = memoryview(self._connection.recv(COALESCE_BYTES))
        if not self._buffered:
            return 0 if len(buffer) < COALESCE_BYTES else self._connection.recv_into(buffer)
        size = min(len(buffer), len(self._buffered))
        buffer[:size] = self._buffered[:size]
        self._buffered = self._buffered[size:]
        return size


def _receive_batch(stream: BufferedSocket, model: Any) -> Any:
    """The next batch: tensors, or values by name of a later part; None where the front has ended."""
    import torch

    from torchsplit_core.stages.tensor_transport import receive_values

    start = bytearray(LENGTH_PREFIX.size)
    if not _receive_exactly(stream, memoryview(start)):
        return None
    head_bytes, following = frame_lengths(start)
    text = bytearray(head_bytes)
    _receive_exactly(stream, memoryview(text))
    head = json.loads(text)
    if "sizes" not in head:
        return receive_values(stream)[1]  # type: ignore[arg-type]
    tensors = []
    for port in model.inputs:
        # torch's own memory: aligned as it allocates, so that a result is equal to the bit to a call of the model.
        tensor = torch.empty((head["rows"], *port.shape), dtype=port.dtype)
        if tensor.numel():
            _receive_exactly(stream, memoryview(tensor.reshape(-1).view(torch.uint8).numpy()))
        tensors.append(tensor)
    assert following == sum(tensor.nbytes for tensor in tensors), (
        "the front sends the inputs that it was told"
    )
    return tensors


def _receive_exactly(stream: BufferedSocket, buffer: memoryview) -> bool:
    """Read exactly that many bytes; False at the end of the stream."""
    done = 0
    while done < len(buffer):
        count = stream.recv_into(buffer[done:])
        if not count:
            return False
        done += count
    return True


def _run_batch(model: Any, message: Any) -> tuple[dict[str, Any], list[Any]]:
    """Head and bytes of the answer to a batch."""
    import torch

    from torchsplit_core.isolation import is_out_of_memory
    from torchsplit_core.serving.model_runner import ModelRunner

    begin = time.perf_counter()
    try:
        if isinstance(model, ModelRunner):
            outputs = model(message)
        else:
            values = model(model.bound(message) if isinstance(message, list) else message)
            if not model.last:
                collected = BlockBuffer()
                spent = (time.perf_counter() - begin) * 1e3
                _send_values(collected, model.handed_on(values))
                return {"ms": spent}, collected.blocks
            outputs = model.results(values)
        spent = (time.perf_counter() - begin) * 1e3
        blocks = [tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data for tensor in outputs]
    except InputFault as fault:
        if "CUDA error" in str(fault):
            raise  # the device failed for this process: another has to take its place
        return {"fault": f"{fault.where} {fault.problem}"[:2000]}, []
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return {"fault": "forward ran out of memory"}, []
    shapes = [list(tensor.shape) for tensor in outputs]
    dtypes = [str(tensor.dtype).removeprefix("torch.") for tensor in outputs]
    return {"ms": spent, "shapes": shapes, "dtypes": dtypes}, blocks


class BlockBuffer:
    """A stream of values kept as blocks, for their length has to be told before them."""

    def __init__(self) -> None:
        self.blocks: list[Any] = []

    def sendall(self, block: Any) -> None:
        """What a socket would send."""
        self.blocks.append(block)


def _send_values(stream: Any, values: dict[str, Any]) -> None:
    from torchsplit_core.stages.tensor_transport import send_values

    send_values(stream, 0, values)
