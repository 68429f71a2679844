"""Traces by OpenTelemetry: a batch's commit, its frames' publication and delivery, and each fill.

The engine makes spans only in a program that has set a tracer provider before it makes a sequencer
or a receiver. Nothing is imported for that, and without a provider there is no `Tracing`, and so no
span. docs/operations.md ("Traces") has the names and attributes.

A trace travels beside a frame, in a header of its Kafka record (W3C `traceparent`), and in the
headers of a message. It is not signed: a forged one leads to a wrong picture, and to nothing
else.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Final

from chain_kernel.frame import decode_header
from chain_kernel.text import reason_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanKind, TracerProvider

    from chain_kernel.model import Gap, Run
    from chain_kernel.seal import Batch


TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"

_API: Final = "opentelemetry.trace"
_VALUE_BYTES_MAX: Final = 512
"""A longer header of a record is none of ours, and not looked at."""
_NOTHING: Final = nullcontext()


class TracedRecord(bytes):
    """The value of a record, with the trace that its header names."""

    traceparent: str


def traced_record(value: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> bytes | None:
    """Return `value` with the trace in `headers`; `value` itself where they have none."""
    for name, found in headers:
        if name == TRACEPARENT and value is not None and found and len(found) <= _VALUE_BYTES_MAX:
            record = TracedRecord(value)
            record.traceparent = found.decode("ascii", errors="replace")
            return record
    return value


def find_tracing() -> Tracing | None:
    """Return what makes spans; None unless this program has set a tracer provider by now."""
    api = sys.modules.get(_API)
    if api is None:
        return None
    provider = api.get_tracer_provider()
    is_empty = isinstance(provider, (api.ProxyTracerProvider, api.NoOpTracerProvider))
    return None if is_empty else Tracing(provider)


class Tracing:
    """Makes the spans of a sequencer or a receiver. Times are of the wall clock, in nanoseconds."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry import context, trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._api = trace
        self._root: Context = context.Context()
        self._tracer = provider.get_tracer("orderchain")
        self._propagator = TraceContextTextMapPropagator()

    def committed(
        self, batch: Batch, began_ns: int, ended_ns: int, error: BaseException | None = None
    ) -> Context:
        """Make the span of a commit, which `error` ended unless it is None; return its context."""
        span = self._span(
            "orderchain.commit",
            self._api.SpanKind.CLIENT,
            self._root,
            began_ns,
            chain_id=batch.chain_id,
            first_id=batch.first_id,
            last_id=batch.last_id,
            rows=batch.row_count,
            epoch=batch.epoch,
        )
        if error is not None:
            self._fail(span, error)
        span.end(ended_ns)
        return self._api.set_span_in_context(span, self._root)

    @contextmanager
    def publishing(
        self, frames: Sequence[bytes], commits: Mapping[bytes, Context]
    ) -> Iterator[list[str]]:
        """Make a span per frame for the block that sends them, and yield their `traceparent`s.

        `commits` holds the contexts of commits by the seal before each batch. A batch that another
        leader committed has none: its frames begin a trace. A heartbeat has no span, and an empty
        text.
        """
        spans: list[Span] = []
        for header in map(decode_header, frames):
            span: Span = self._api.INVALID_SPAN
            if header.count:
                span = self._span(
                    "orderchain.publish",
                    self._api.SpanKind.PRODUCER,
                    commits.get(header.seal_before, self._root),
                    None,
                    chain_id=header.chain_id,
                    first_id=header.first_id,
                    last_id=header.last_id,
                    rows=header.count,
                    epoch=header.epoch,
                )
            spans.append(span)
        try:
            yield [self._traceparent(span) for span in spans]
        except BaseException as error:
            for span in spans:
                self._fail(span, error)
            raise
        finally:
            for span in spans:
                span.end()

    def delivered(self, run: Run, epoch: int, record: bytes, began_ns: int, ended_ns: int) -> None:
        """Make the span of a frame's delivery, in the trace that its record names."""
        carried = {TRACEPARENT: getattr(record, TRACEPARENT, "")}
        span = self._span(
            "orderchain.deliver",
            self._api.SpanKind.CONSUMER,
            self._propagator.extract(carried, self._root),
            began_ns,
            chain_id=run.chain_id,
            first_id=run.events[0].id,
            last_id=run.last_id,
            rows=len(run.events),
            epoch=epoch,
        )
        span.end(ended_ns)

    def filled(self, gap: Gap) -> None:
        """Make the span of a fill that has ended, with or without its rows."""
        if gap.outcome == "open":
            return
        span = self._span(
            "orderchain.fill",
            self._api.SpanKind.CLIENT,
            self._root,
            gap.found_at_ns,
            chain_id=gap.chain_id,
            after_id=gap.after_id,
            until_id=gap.until_id,
            rows=gap.rows,
            cause=gap.cause,
            source=gap.source,
            outcome=gap.outcome,
        )
        if gap.outcome != "filled":
            span.set_status(self._api.Status(self._api.StatusCode.ERROR, gap.outcome))
        span.end(gap.found_at_ns + gap.duration_ns)

    def _span(
        self,
        name: str,
        kind: SpanKind,
        parent: Context,
        began_ns: int | None,
        **values: int | str,
    ) -> Span:
        attributes = {f"orderchain.{key}": value for key, value in values.items()}
        return self._tracer.start_span(name, parent, kind, attributes, start_time=began_ns)

    def _fail(self, span: Span, error: BaseException) -> None:
        span.set_attribute("error.type", type(error).__name__)
        span.set_status(self._api.Status(self._api.StatusCode.ERROR, reason_of(error)))

    def _traceparent(self, span: Span) -> str:
        carried: dict[str, str] = {}
        self._propagator.inject(carried, self._api.set_span_in_context(span, self._root))
        return carried.get(TRACEPARENT, "")


def current_headers() -> dict[str, str]:
    """Return the headers that carry the current trace on; none where there is no trace."""
    if _API not in sys.modules:
        return {}
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carried: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carried)
    return carried


def following(headers: Mapping[str, bytes]) -> AbstractContextManager[None]:
    """Return a context manager for a block: its spans belong to the trace that `headers` name."""
    if _API not in sys.modules or TRACEPARENT not in headers:
        return _NOTHING
    return _attached(headers)


@contextmanager
def _attached(headers: Mapping[str, bytes]) -> Iterator[None]:
    from opentelemetry import context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carried = {
        name: headers[name][:_VALUE_BYTES_MAX].decode("ascii", errors="replace")
        for name in (TRACEPARENT, TRACESTATE)
        if name in headers
    }
    token = context.attach(TraceContextTextMapPropagator().extract(carried))
    try:
        yield
    finally:
        context.detach(token)
