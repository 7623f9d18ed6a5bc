"""The process of one stage: load the part, then take a message, compute, pass on, until the stream ends.

Run by `isolation.launch` as `serve_in_child`, with the request that `pipeline` makes. It tells its parent of itself in
JSON lines: `{"ready": true}`, `{"done": number}`, `{"fault": [where, problem, remedy]}`. A thread receives ahead,
so that the next batch crosses while this one is computed.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import threading
from pathlib import Path
from typing import Any, NoReturn

from torchsplit_core.values import InputFault, Progress, StagePart, StageValue, last_cause

PREFETCHED = 2
"""Messages received before they are computed: enough that a stage does not wait for the wire."""
GONE = 3
"""Exit status of a stage whose neighbour went away: the fault is the neighbour's."""


def serve_in_child(request: dict[str, Any], progress: Progress) -> NoReturn:
    """Serve until the stream of inputs ends; exit 0, GONE or 1. Executes what the part holds."""
    control = os.fdopen(request["control"], "w", encoding="utf-8")

    def send_status(kind: str, content: Any) -> None:
        control.write(json.dumps({kind: content}) + "\n")
        control.flush()

    status = 1
    try:
        status = _serve(request, send_status)
    except InputFault as fault:
        send_status("fault", fault.parts)
    except Exception as error:  # noqa: BLE001 - the edge of the process: whatever it was, the parent is told
        cause = last_cause(error)
        message = " ".join(f"{type(cause).__name__}: {cause}".split())
        send_status("fault", [request["name"], f"raised {message[:2000]}", "Mend its inputs."])
    # Neither the receiving thread nor the libraries' own may hold the end up.
    os._exit(status)


def _serve(request: dict[str, Any], send_status: Any) -> int:
    import torch

    from torchsplit_core.stages.staged_model import LoadedStage
    from torchsplit_core.stages.tensor_transport import StreamClosed, receive_values, send_values

    torch.set_num_threads(request["threads"])
    stage = LoadedStage(Path(request["directory"]), _parse_part(request["part"]))
    incoming = socket.socket(fileno=request["incoming"])
    outgoing = socket.socket(fileno=request["outgoing"])
    ahead: queue.Queue[tuple[int, dict[str, Any]] | Exception] = queue.Queue(PREFETCHED)

    def receive() -> None:
        try:
            while True:
                ahead.put(receive_values(incoming))
        except (StreamClosed, OSError, ValueError, KeyError) as error:
            ahead.put(error)

    threading.Thread(target=receive, daemon=True).start()
    send_status("ready", True)
    while True:
        message = ahead.get()
        if isinstance(message, Exception):
            return 0 if isinstance(message, StreamClosed) and message.clean else GONE
        number, values = message
        values |= stage(values)
        try:
            send_values(outgoing, number, {name: values[name] for name in request["pass_on"]})
        except OSError:
            return GONE
        send_status("done", number)


def _parse_part(content: dict[str, Any]) -> StagePart:
    def values(entries: list[dict[str, Any]]) -> tuple[StageValue, ...]:
        return tuple(StageValue(entry["name"], entry["kind"]) for entry in entries)

    return StagePart(
        **{**content, "inputs": values(content["inputs"]), "outputs": values(content["outputs"])}
    )
