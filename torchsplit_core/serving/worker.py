"""A worker's process: loads a model or a stage, warms it up, then runs one batch at a time.

`isolation.launch` runs `serve_in_child`. On its control descriptor the worker sends JSON lines:
`{"ready": {inputs, outputs, example}}` or `{"fault": [where, problem, remedy]}`. `framing` describes the batches.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import time
from io import BufferedReader
from typing import Any, NoReturn

from torchsplit_core.serving.framing import LENGTH_PREFIX, encode_header, frame_lengths
from torchsplit_core.serving.pinning import pin_process
from torchsplit_core.serving.worker_connection import COALESCE_BYTES
from torchsplit_core.values import InputFault, Progress


def serve_in_child(request: dict[str, Any], progress: Progress) -> NoReturn:
    """Serve until the frontend closes the socket. Executes the model's code."""
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
        status = 0  # the frontend is gone
    except Exception as error:  # noqa: BLE001 - the edge of the process: report every error
        from torchsplit_core.model_source import describe_exception

        send_status("fault", [request["id"], describe_exception(error), "Mend the model's code."])
    os._exit(status)


def _serve(request: dict[str, Any], send_status: Any) -> None:
    # `open_device` then counts only these.
    pin_process(request["cores"])
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
        connection = socket.socket(fileno=request["socket"])
        stream = BufferedReader(connection.makefile("rb", 0), COALESCE_BYTES)
        torch.set_grad_enabled(False)
        if isinstance(model, ModelRunner):
            model.warm_up(request["max_batch"])
        ports = {"inputs": model.inputs, "outputs": model.outputs}
        ready: dict[str, Any] = {kind: [port.metadata() for port in group] for kind, group in ports.items()}
        send_status("ready", ready | {"example": _example(model)})
        while (batch := _receive_batch(stream, model)) is not None:
            head, payload = _run_batch(model, batch)
            total = sum(map(len, payload))
            blocks = [encode_header(head, total), *payload]
            # One write for a small message: each write wakes the frontend.
            for block in [b"".join(blocks)] if total < COALESCE_BYTES else blocks:
                connection.sendall(block)


def _example(model: Any) -> list[str]:
    """The first row of the model's example, the bytes of each input in base64, for load tests."""
    import torch

    if model.example is None:
        return []
    rows = [tensor[:1].contiguous().reshape(-1).view(torch.uint8).numpy() for tensor in model.example.at(2)]
    return [base64.b64encode(row.tobytes()).decode() for row in rows]


def _receive_batch(stream: BufferedReader[Any], model: Any) -> Any:
    """The next batch: tensors, or values by name for a later stage; None once the frontend has closed the stream."""
    import torch

    from torchsplit_core.stages.tensor_transport import receive_exactly, receive_values

    prefix = bytearray(LENGTH_PREFIX.size)
    try:
        receive_exactly(stream, memoryview(prefix))
    except EOFError:
        return None
    head_bytes, payload_bytes = frame_lengths(prefix)
    text = bytearray(head_bytes)
    receive_exactly(stream, memoryview(text))
    head = json.loads(text)
    if "sizes" not in head:
        return receive_values(stream)
    tensors = []
    for port in model.inputs:
        # torch allocates it, so that its alignment, and with it every result, is the same as in a plain call.
        tensor = torch.empty((head["rows"], *port.shape), dtype=port.dtype)
        if tensor.numel():
            receive_exactly(stream, memoryview(tensor.reshape(-1).view(torch.uint8).numpy()))
        tensors.append(tensor)
    assert payload_bytes == sum(tensor.nbytes for tensor in tensors), "the inputs have the sizes of the ports"
    return tensors


def _run_batch(model: Any, batch: Any) -> tuple[dict[str, Any], list[Any]]:
    """Head and payload of the response to a batch."""
    import torch

    from torchsplit_core.isolation import is_out_of_memory
    from torchsplit_core.serving.model_runner import ModelRunner
    from torchsplit_core.stages.tensor_transport import encode_values

    begin = time.perf_counter()
    try:
        if isinstance(model, ModelRunner):
            outputs = model(batch)
        else:
            values = model(model.bound(batch) if isinstance(batch, list) else batch)
            if not model.last:
                spent = (time.perf_counter() - begin) * 1e3
                return {"ms": spent}, encode_values(model.live(values))
            outputs = model.results(values)
        spent = (time.perf_counter() - begin) * 1e3
        blocks = [tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data for tensor in outputs]
    except InputFault as fault:
        if "CUDA error" in str(fault):
            raise  # the device is lost to this process: a new one must replace it
        return {"fault": f"{fault.where} {fault.problem}"[:2000]}, []
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return {"fault": "forward ran out of memory"}, []
    shapes = [list(tensor.shape) for tensor in outputs]
    dtypes = [str(tensor.dtype).removeprefix("torch.") for tensor in outputs]
    return {"ms": spent, "shapes": shapes, "dtypes": dtypes}, blocks
