"""Send spans with the SDK of OpenTelemetry, over HTTP. The environment variables `OTEL_*` configure the SDK."""

import logging
import threading
from collections.abc import Mapping
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Sampler, SamplingResult

from fedstrata.process.logs import EventLog
from fedstrata.process.quoting import brief

LAST_SPANS_S = 2.0  # time that an ending process has to send its last spans
SAMPLED = trace.TraceFlags(trace.TraceFlags.SAMPLED)
log = EventLog("spans")


class _GivenIds(IdGenerator):
    """Give the next span the ids that the attributes `trace_id` and `span_id` hold."""

    trace_id = span_id = 0

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        return self.span_id


class _OfTrace(Sampler):
    """Let another sampler decide which spans are sent, but hide from it that a span has a parent.

    Many samplers decide about a span as about its parent. But the parent may be the span of another process, and a
    process does not know what another process has decided. Without a parent, a sampler can decide only by the id of the
    trace. So all processes decide alike.
    """

    def __init__(self, chosen: Sampler) -> None:
        self._chosen = chosen

    def should_sample(self, parent_context: Context | None, *span: Any, **more: Any) -> SamplingResult:
        return self._chosen.should_sample(Context(), *span, **more)

    def get_description(self) -> str:
        return self._chosen.get_description()


class _FirstWarning(logging.Handler):
    """Log only the first warning of the SDK. The warning may say, for instance, that there is no collector."""

    def emit(self, record: logging.LogRecord) -> None:
        log.warning("spans_lost", reason=brief(record.getMessage()))
        self.setLevel(logging.CRITICAL + 1)


class Collector:
    """Send spans in batches, from a separate thread. If the collector is absent, spans are lost, but the process does
    not wait.
    """

    def __init__(self, service: str) -> None:
        first = _FirstWarning(logging.WARNING)
        for name in ("opentelemetry", "urllib3"):  # the exporter uses urllib3, which also warns of lost connections
            library = logging.getLogger(name)
            library.handlers, library.propagate = [first], False
        self._ids = _GivenIds()
        resource = Resource({SERVICE_NAME: service}).merge(OTELResourceDetector().detect())
        sampler = _OfTrace(TracerProvider(shutdown_on_exit=False).sampler)  # the sampler that OTEL_TRACES_SAMPLER names
        self._provider = TracerProvider(
            sampler=sampler, resource=resource, id_generator=self._ids, shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("fedstrata")

    def send(
        self, name: str, ids: tuple[int, int, int | None], times: tuple[int, int], attributes: Mapping[str, str | int]
    ) -> None:
        """Put a span into the queue of spans to send."""
        self._ids.trace_id, self._ids.span_id, parent_id = ids
        context = Context()
        if parent_id is not None:
            parent = trace.SpanContext(self._ids.trace_id, parent_id, is_remote=True, trace_flags=SAMPLED)
            context = trace.set_span_in_context(trace.NonRecordingSpan(parent), context)
        self._tracer.start_span(name, context, start_time=times[0], attributes=attributes).end(times[1])

    def close(self) -> None:
        """Send the spans in the queue. Stop after two seconds."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(LAST_SPANS_S)
