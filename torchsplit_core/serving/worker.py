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

from torchsplit_core.serving.link import JOINED
from torchsplit_core.serving.messages import HEAD, lengths, packed_head
from torchsplit_core.values import InputFault, Progress


def serve_in_child(request: dict[str, Any], progress: Progress) -> NoReturn:
    """Serve until the front closes the socket. Executes the model's code."""
    control = os.fdopen(request["control"], "w", encoding="utf-8")

    def tell(kind: str, content: Any) -> None:
        control.write(json.dumps({kind: content}) + "\n")
        control.flush()

    status = 1
    try:
        _serve(request, tell)
        status = 0
    except InputFault as fault:
        tell("fault", fault.parts)
    except (BrokenPipeError, ConnectionResetError):
        status = 0  # the front is gone
    except Exception as error:  # noqa: BLE001 - the edge of the process: whatever it was, the front is told
        from torchsplit_core.model_source import raised

        tell("fault", [request["id"], raised(error), "Mend the model's code."])
    os._exit(status)


def _serve(request: dict[str, Any], tell: Any) -> None:
    _hold_to(request["cores"])
    import torch

    from torchsplit_core.profiling.measuring.accelerator import open_device
    from torchsplit_core.serving.runnable import Part, WholeModel

    with open_device(request["device"]) as opened:
        model: WholeModel | Part
        if request["directory"]:
            where, position = request["directory"], request["position"]
            model = Part(where, position, request["source"], request["trust"], opened.torch_device)
        else:
            model = WholeModel(request["source"], request["trust"], opened.torch_device)
        stream = Stream(socket.socket(fileno=request["socket"]))
        torch.set_grad_enabled(False)
        if isinstance(model, WholeModel):
            model.warm_up(request["max_batch"])
        ports = {"inputs": model.inputs, "outputs": model.outputs}
        ready: dict[str, Any] = {kind: [port.told() for port in found] for kind, found in ports.items()}
        tell("ready", ready | {"example": _example(model)})
        while (message := _next(stream, model)) is not None:
            head, following = _answer(model, message)
            total = sum(map(len, following))
            blocks = [packed_head(head, total), *following]
            # What is small goes out in one piece: each wakes the front up.
            for one in [b"".join(blocks)] if total < JOINED else blocks:
                stream.sendall(one)


def _example(model: Any) -> list[str]:
    """The first row of the model's own example, each input's bytes in base64: what a load test sends."""
    import torch

    if model.example is None:
        return []
    rows = [tensor[:1].contiguous().reshape(-1).view(torch.uint8).numpy() for tensor in model.example.at(2)]
    return [base64.b64encode(row.tobytes()).decode() for row in rows]


def _hold_to(cores: Sequence[int]) -> None:
    """Every thread of this process to these cores, so that `open_device` counts them alone."""
    if cores:
        for task in Path("/proc/self/task").iterdir():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(task.name), cores)


class Stream:
    """The front's messages: small ones are read in one go, since one comes at a time."""

    def __init__(self, connection: socket.socket) -> None:
        self.sendall = connection.sendall
        self._connection = connection
        self._ahead = memoryview(b"")

    def recv_into(self, room: memoryview) -> int:
        """As a socket's; 0 at its end."""
        if not self._ahead and len(room) < JOINED:
            self._ahead = memoryview(self._connection.recv(JOINED))
        if not self._ahead:
            return 0 if len(room) < JOINED else self._connection.recv_into(room)
        size = min(len(room), len(self._ahead))
        room[:size] = self._ahead[:size]
        self._ahead = self._ahead[size:]
        return size


def _next(stream: Stream, model: Any) -> Any:
    """The next batch: tensors, or values by name of a later part; None where the front has ended."""
    import torch

    from torchsplit_core.stages.wire import receive_values

    start = bytearray(HEAD.size)
    if not _fill(stream, memoryview(start)):
        return None
    head_bytes, following = lengths(start)
    text = bytearray(head_bytes)
    _fill(stream, memoryview(text))
    head = json.loads(text)
    if "sizes" not in head:
        return receive_values(stream)[1]  # type: ignore[arg-type]
    tensors = []
    for port in model.inputs:
        # torch's own memory: aligned as it allocates, so that a result is equal to the bit to a call of the model.
        tensor = torch.empty((head["rows"], *port.shape), dtype=port.dtype)
        if tensor.numel():
            _fill(stream, memoryview(tensor.reshape(-1).view(torch.uint8).numpy()))
        tensors.append(tensor)
    assert following == sum(tensor.nbytes for tensor in tensors), (
        "the front sends the inputs that it was told"
    )
    return tensors


def _fill(stream: Stream, room: memoryview) -> bool:
    """Read exactly that many bytes; False at the end of the stream."""
    done = 0
    while done < len(room):
        found = stream.recv_into(room[done:])
        if not found:
            return False
        done += found
    return True


def _answer(model: Any, message: Any) -> tuple[dict[str, Any], list[Any]]:
    """Head and bytes of the answer to a batch."""
    import torch

    from torchsplit_core.isolation import is_out_of_memory
    from torchsplit_core.serving.runnable import WholeModel

    begin = time.perf_counter()
    try:
        if isinstance(model, WholeModel):
            found = model(message)
        else:
            values = model(model.bound(message) if isinstance(message, list) else message)
            if not model.last:
                collected = Collected()
                spent = (time.perf_counter() - begin) * 1e3
                _send_values(collected, model.handed_on(values))
                return {"ms": spent}, collected.blocks
            found = model.results(values)
        spent = (time.perf_counter() - begin) * 1e3
        blocks = [tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data for tensor in found]
    except InputFault as fault:
        if "CUDA error" in str(fault):
            raise  # the device failed for this process: another has to take its place
        return {"fault": f"{fault.where} {fault.problem}"[:2000]}, []
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return {"fault": "forward ran out of memory"}, []
    shapes = [list(tensor.shape) for tensor in found]
    told = [str(tensor.dtype).removeprefix("torch.") for tensor in found]
    return {"ms": spent, "shapes": shapes, "dtypes": told}, blocks


class Collected:
    """A stream of values kept as blocks, for their length has to be told before them."""

    def __init__(self) -> None:
        self.blocks: list[Any] = []

    def sendall(self, block: Any) -> None:
        """What a socket would send."""
        self.blocks.append(block)


def _send_values(stream: Any, values: dict[str, Any]) -> None:
    from torchsplit_core.stages.wire import send_values

    send_values(stream, 0, values)
