"""A collector in this process: takes OTLP over HTTP and keeps what protobuf says it was sent."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Receiver:
    """Where it listens, the path and headers of each request, and the spans that came."""

    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"
        self.paths: list[str] = []
        self.types: list[str] = []
        self.services: list[str] = []
        self.spans: list[Span] = []

    def named(self, name: str) -> Span:
        """The one span of this name."""
        (found,) = [span for span in self.spans if span.name == name]
        return found


@contextmanager
def receiver() -> Iterator[Receiver]:
    """A collector on a free port for the time of the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = ExportTraceServiceRequest.FromString(
                self.rfile.read(int(self.headers["Content-Length"]))
            )
            kept.paths.append(self.path)
            kept.types.append(self.headers["Content-Type"])
            for resource in request.resource_spans:
                kept.services += [
                    pair.value.string_value
                    for pair in resource.resource.attributes
                    if pair.key == "service.name"
                ]
                kept.spans += [span for scope in resource.scope_spans for span in scope.spans]
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            return

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        kept = Receiver(server.server_port)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield kept
        finally:
            server.shutdown()
            thread.join()
