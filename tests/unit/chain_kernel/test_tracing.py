"""Spans and what carries them, without a server; over real ones in tests/integration/sequencer."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from opentelemetry import trace
from opentelemetry.trace import StatusCode

from chain_kernel.errors import RetryError
from chain_kernel.model import Gap, Run
from chain_kernel.tracing import (
    TRACEPARENT,
    TracedRecord,
    Tracing,
    current_headers,
    find_tracing,
    following,
    traced_record,
)
from tests.builders.chains import make_chain
from tests.builders.spans import (
    Spans,
    id_of,
    parent_of,
    recorded_spans,
    trace_of,
    values_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

TRACE = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
NO_IDS = b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01"


@pytest.fixture
def spans() -> Iterator[Spans]:
    with recorded_spans() as recorded:
        yield recorded


@pytest.fixture
def tracing(spans: Spans) -> Tracing:
    found = find_tracing()
    assert found is not None
    return found


def test_without_a_provider_nothing_is_traced() -> None:
    assert find_tracing() is None
    assert current_headers() == {}
    with following({TRACEPARENT: TRACE}):
        assert trace.get_tracer_provider()


def test_the_engine_alone_imports_no_tracing() -> None:
    program = (
        "import sys\n"
        "from orderchain import open_receiver, open_sequencer\n"
        "from outbox import Consumer, Relay\n"
        "from chain_kernel.tracing import current_headers, find_tracing, following\n"
        "assert find_tracing() is None and current_headers() == {}\n"
        "with following({'traceparent': b'00'}): pass\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# ----------------------------------------------------------------------------------------- spans


def test_each_frame_of_a_batch_is_a_child_of_its_commit_and_a_heartbeat_has_no_span(
    tracing: Tracing, spans: Spans
) -> None:
    chain = make_chain([5, 2])
    first, second = chain.batches
    commits = {batch.seal_before: tracing.committed(batch, 1, 2) for batch in chain.batches}
    frames = [*chain.frames(first, 2), chain.heartbeat(), *chain.frames(second)]
    with tracing.publishing(frames, commits) as traceparents:
        assert spans.named("orderchain.publish") == []
    assert [bool(each) for each in traceparents] == [True, True, True, False, True]
    published = spans.named("orderchain.publish")
    ends = [(values_of(one)["first_id"], values_of(one)["rows"]) for one in published]
    assert ends == [(first.events[at].id, rows) for at, rows in ((0, 2), (2, 2), (4, 1))] + [
        (second.first_id, 2)
    ]
    parents = [id_of(one) for one in spans.named("orderchain.commit")]
    assert [parent_of(one) for one in published] == [parents[0]] * 3 + [parents[1]]


def test_frames_of_a_batch_that_another_leader_committed_begin_a_trace(
    tracing: Tracing, spans: Spans
) -> None:
    with tracing.publishing(make_chain([1]).all_frames(), {}):
        pass
    assert parent_of(spans.only("orderchain.publish")) is None


def test_work_that_failed_is_a_span_that_says_so(tracing: Tracing, spans: Spans) -> None:
    chain = make_chain([1])
    tracing.committed(chain.batches[0], 1, 2, RetryError("the server is away"))
    with (
        pytest.raises(RetryError),
        tracing.publishing(chain.all_frames(), {}),
    ):
        raise RetryError("the broker is away")
    for name, word in (("commit", "server"), ("publish", "broker")):
        span = spans.only(f"orderchain.{name}")
        assert span.status.status_code is StatusCode.ERROR
        assert word in (span.status.description or "")
        assert (span.attributes or {})["error.type"] == "RetryError"


def test_delivery_belongs_to_the_trace_that_came_with_the_frame(
    tracing: Tracing, spans: Spans
) -> None:
    chain = make_chain([3])
    frames = chain.all_frames()
    with tracing.publishing(frames, {}) as (traceparent,):
        pass
    record = traced_record(frames[0], [(TRACEPARENT, traceparent.encode())])
    assert record == frames[0]
    run = Run(chain_id=chain.chain_id, events=chain.events, end=chain.mark())
    assert record is not None
    tracing.delivered(run, 1, record, 1, 2)
    published, delivered = spans.only("orderchain.publish"), spans.only("orderchain.deliver")
    assert parent_of(delivered) == id_of(published)
    assert trace_of(delivered) == trace_of(published)
    assert (delivered.start_time, delivered.end_time) == (1, 2)


@pytest.mark.parametrize(
    "forged",
    [
        b"",
        b"\xff\xfe",
        b"00-",
        TRACE[:-1],
        TRACE * 100,
        b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01",
    ],
)
def test_forged_trace_costs_a_delivery_no_more_than_its_place(
    tracing: Tracing, spans: Spans, forged: bytes
) -> None:
    chain = make_chain([1])
    record = traced_record(chain.all_frames()[0], [("other", b"x"), (TRACEPARENT, forged)])
    assert record == chain.all_frames()[0]
    run = Run(chain_id=chain.chain_id, events=chain.events, end=chain.mark())
    assert record is not None
    tracing.delivered(run, 1, record, 1, 2)
    assert parent_of(spans.only("orderchain.deliver")) is None


def test_record_without_a_trace_is_passed_on_as_it_is() -> None:
    value = b"a frame"
    assert traced_record(value, []) is value
    assert traced_record(value, [(TRACEPARENT, None)]) is value
    assert traced_record(None, [(TRACEPARENT, TRACE)]) is None
    assert type(traced_record(value, [(TRACEPARENT, TRACE)])) is TracedRecord


GAP = Gap(
    chain_id=7,
    after_id=3,
    until_id=9,
    cause="heartbeat",
    source="standby",
    rows=4,
    found_at_ns=1_000,
    duration_ns=500,
)


def test_fill_is_a_span_from_when_the_gap_was_seen_and_an_open_one_is_none(
    tracing: Tracing, spans: Spans
) -> None:
    tracing.filled(replace(GAP, outcome="open"))
    tracing.filled(GAP)
    span = spans.only("orderchain.fill")
    assert (span.start_time, span.end_time) == (1_000, 1_500)
    assert values_of(span) == {
        "chain_id": 7,
        "after_id": 3,
        "until_id": 9,
        "rows": 4,
        "cause": "heartbeat",
        "source": "standby",
        "outcome": "filled",
    }
    assert span.status.status_code is StatusCode.UNSET


def test_fill_that_brought_nothing_is_a_span_that_says_so(tracing: Tracing, spans: Spans) -> None:
    tracing.filled(replace(GAP, outcome="missing"))
    assert spans.only("orderchain.fill").status.status_code is StatusCode.ERROR


# --------------------------------------------------------------------------------------- headers


def test_headers_carry_a_trace_from_one_block_to_another(spans: Spans) -> None:
    tracer = trace.get_tracer("a service")
    with tracer.start_as_current_span("sender"):
        carried = {name: value.encode() for name, value in current_headers().items()}
    assert carried.keys() == {TRACEPARENT}
    with following(carried), tracer.start_as_current_span("handler"):
        pass
    assert parent_of(spans.only("handler")) == id_of(spans.only("sender"))
    assert current_headers() == {}  # the block has left nothing behind


@pytest.mark.parametrize("forged", [b"", b"\xff" * 10_000, b"00-"])
def test_forged_headers_leave_a_block_without_a_trace(spans: Spans, forged: bytes) -> None:
    tracer = trace.get_tracer("a service")
    with following({TRACEPARENT: forged}), tracer.start_as_current_span("handler"):
        pass
    assert parent_of(spans.only("handler")) is None
