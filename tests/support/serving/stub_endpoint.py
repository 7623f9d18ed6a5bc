"""An OpenAI-compatible endpoint whose tokens come at known times, and whose models behave badly by their names."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, BinaryIO

GOOD = "good"
BAD = (
    "closes", "closes-in-head", "no-stream", "half-line", "cut", "no-json", "no-object", "error-event", "zero-tokens",
    "empty-stream", "no-usage", "endless", "huge-line", "stalls", "stalls-midway", "answers-400", "answers-401",
    "answers-404", "answers-429", "answers-500", "no-http", "refuses-ignore-eos", "usage-zero",
)  # fmt: skip
KEY = "sesame"


@dataclass
class StubEndpoint:
    """Where it listens, and the bodies of all completions that it was asked for; `needs_key` asks for KEY."""

    first_s: float = 0.0
    gap_s: float = 0.0
    tokens_a_word: int = 1
    template_tokens: int = 0
    needs_key: bool = False
    only_chat: bool = False
    metrics: str = ""
    port: int = 0
    asked: list[dict[str, Any]] = field(default_factory=list)
    connections: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def stub_endpoint(**settings: Any) -> Iterator[StubEndpoint]:
    """Serve until the block ends."""
    stub = StubEndpoint(**settings)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stub.port = listener.getsockname()[1]
        ended = threading.Event()
        threading.Thread(target=_accept, args=(listener, stub, ended), daemon=True).start()
        try:
            yield stub
        finally:
            ended.set()
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, stub: StubEndpoint, ended: threading.Event) -> None:
    with suppress(OSError):
        while True:
            connection, _ = listener.accept()
            stub.connections += 1
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_serve, args=(connection, stub, ended), daemon=True).start()


def _serve(connection: socket.socket, stub: StubEndpoint, ended: threading.Event) -> None:
    with connection, suppress(OSError):
        reader = connection.makefile("rb")
        while head := _head(reader):
            method, path = head[0].split(" ")[:2] if " " in head[0] else ("", "")
            if method not in ("GET", "POST"):
                return
            headers = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
            body = reader.read(int(headers.get("content-length", 0)))
            if method == "GET":
                _answer_get(connection, stub, path)
            elif stub.needs_key and headers.get("authorization") != f"bearer {KEY}":
                said = headers.get("authorization", "").removeprefix("bearer ")
                _answer(connection, 401, {"error": {"message": f"no such key{said and f': {said}'}"}})
            else:
                if stub.only_chat and path != "/v1/chat/completions":
                    _answer(connection, 404, {"detail": "Not Found"})
                    continue
                content = json.loads(body)
                stub.asked.append(content | {"path": path})
                if not _complete(connection, stub, content, ended):
                    return


def _head(reader: BinaryIO) -> list[str]:
    lines: list[str] = []
    while (line := reader.readline().decode("latin-1").rstrip("\r\n")) or not lines:
        if not line:
            return []
        lines.append(line)
    return lines


def _answer(connection: socket.socket, status: int, content: object, kind: str = "application/json") -> None:
    body = content.encode() if isinstance(content, str) else json.dumps(content).encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)


def _answer_get(connection: socket.socket, stub: StubEndpoint, path: str) -> None:
    if path == "/v1/models":
        names = [GOOD, *BAD]
        data = [{"id": name, "object": "model", "owned_by": "stub", "max_model_len": 4096} for name in names]
        _answer(connection, 200, {"object": "list", "data": data})
    elif path == "/version":
        _answer(connection, 200, {"version": "1.2"})
    elif path == "/metrics" and stub.metrics:
        _answer(connection, 200, stub.metrics, "text/plain")
    else:
        _answer(connection, 404, {"detail": "Not Found"})


def _complete(
    connection: socket.socket, stub: StubEndpoint, content: dict[str, Any], ended: threading.Event
) -> bool:
    """Answer a completion; whether the connection goes on."""
    name = content["model"]
    if name.startswith("answers-"):
        status = int(name[-3:])
        _answer(connection, status, {"error": {"message": f"a stub\nsays {status}", "type": "stub"}})
        return True
    if name not in (GOOD, *BAD):
        _answer(connection, 404, {"error": {"message": f"The model `{name}` does not exist."}})
        return True
    if name == "refuses-ignore-eos" and "ignore_eos" in content:
        _answer(connection, 400, {"error": {"message": "Unrecognized request argument: ignore_eos"}})
        return True
    if name == "no-stream":
        _answer(connection, 200, {"choices": [{"text": "all at once", "finish_reason": "length"}]})
        return True
    if name == "no-http":
        connection.sendall(b"SSH-2.0-stub\r\n\r\n")
        return False
    if name == "closes":
        return False
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
    if name == "closes-in-head":
        connection.sendall(head[:30])
        return False
    if name == "stalls":
        ended.wait()
        return False
    connection.sendall(head)
    return _stream(connection, stub, content, name, ended)


def _stream(
    connection: socket.socket, stub: StubEndpoint, content: dict[str, Any], name: str, ended: threading.Event
) -> bool:
    chat = "messages" in content

    def send(data: object) -> None:
        text = data if isinstance(data, str) else json.dumps(data)
        _chunk(connection, f"data: {text}\n\n".encode())

    def choice(text: str, finish: str | None = None) -> dict[str, Any]:
        said = {"delta": {"content": text} if text else {}} if chat else {"text": text}
        return {"choices": [{"index": 0, **said, "finish_reason": finish}]}

    if chat:
        # The role comes at once, as some servers send it: it is no token.
        send(
            {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
        )
    if name == "empty-stream":
        _chunk(connection, b"")
        return True
    tokens = 0 if name == "zero-tokens" else content["max_tokens"]
    due = time.perf_counter() + stub.first_s
    for number in range(1 << 30 if name == "endless" else tokens):
        while (early := due - time.perf_counter()) > 0:
            time.sleep(early)
        due += stub.gap_s
        if name == "half-line":
            _chunk(connection, b'data: {"choices": [{"te')
            _chunk(connection, b"")
            return True
        if name == "cut" and number:
            return False
        if name == "no-json":
            send("{nonsense")
        elif name == "no-object":
            send([1])
        elif name == "error-event":
            send({"error": {"message": "out of memory"}})
        elif name == "huge-line":
            _chunk(connection, b"data: " + b"x" * (1 << 21))
        elif name == "stalls-midway" and number:
            ended.wait()
            return False
        else:
            send(choice("word "))
    # The last event has its reason alone, as some servers send it: it is no token.
    send(choice("", "length"))
    prompt = content["messages"][0]["content"] if chat else content["prompt"]
    counted = {"prompt_tokens": stub.template_tokens + stub.tokens_a_word * len(prompt.split())}
    counted["completion_tokens"] = 0 if name == "usage-zero" else tokens
    if name != "no-usage" and content["stream_options"]["include_usage"]:
        send({"choices": [], "usage": counted})
    send("[DONE]")
    _chunk(connection, b"")
    return True


def _chunk(connection: socket.socket, block: bytes) -> None:
    connection.sendall(b"%x\r\n%b\r\n" % (len(block), block))
