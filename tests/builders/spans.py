"""Spans of a test: a tracer provider for the time of the test, and what it was given."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.util.types import AttributeValue


class Spans:
    """The spans that have ended, in the order of their ends."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def only(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span


@contextmanager
def recorded_spans() -> Iterator[Spans]:
    """Set a tracer provider for the block. The API takes one per process, so it is put there."""
    provider, exporter = TracerProvider(shutdown_on_exit=False), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with patch.object(trace, "_TRACER_PROVIDER", provider):
        yield Spans(exporter)
    provider.shutdown()


def values_of(span: ReadableSpan) -> dict[str, AttributeValue]:
    """Return the attributes without the prefix that all of ours have."""
    return {
        name.removeprefix("orderchain."): value for name, value in (span.attributes or {}).items()
    }


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def trace_of(span: ReadableSpan) -> int:
    assert span.context is not None
    trace_id: int = span.context.trace_id
    return trace_id


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    span_id: int = span.context.span_id
    return span_id
