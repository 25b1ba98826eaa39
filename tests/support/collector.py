"""A collector of traces: it takes what exporters send by OTLP over HTTP, read by OpenTelemetry's own messages."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Got(NamedTuple):
    """One span as it came."""

    service: str
    name: str
    trace: bytes
    id: bytes
    parent: bytes
    began_ns: int
    ended_ns: int
    about: dict[str, str | int]


def values(attributes: Any) -> dict[str, str | int]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


def spans_in(request: ExportTraceServiceRequest) -> list[Got]:
    """The spans of one export."""
    return [
        Got(
            service=str(values(sent.resource.attributes)["service.name"]),
            name=span.name,
            trace=span.trace_id,
            id=span.span_id,
            parent=span.parent_span_id,
            began_ns=span.start_time_unix_nano,
            ended_ns=span.end_time_unix_nano,
            about=values(span.attributes),
        )
        for sent in request.resource_spans
        for scope in sent.scope_spans
        for span in scope.spans
    ]


class CollectorServer:
    """Serve until the block ends. `stop` ends it earlier."""

    def __init__(self) -> None:
        spans: list[Got] = []
        self.spans = spans

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.path == "/v1/traces"
                spans.extend(spans_in(ExportTraceServiceRequest.FromString(body)))
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Take nothing more, and refuse connections."""
        self._server.shutdown()
        self._server.server_close()
