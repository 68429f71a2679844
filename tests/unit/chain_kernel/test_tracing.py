"""Spans and what carries them, without a server; over real ones in tests/integration/sequencer."""

import sys
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.trace import StatusCode

from chain_kernel.errors import RetryError
from chain_kernel.tracing import TRACEPARENT, Tracing, current_headers, find_tracing, following
from tests.builders.chains import make_chain
from tests.builders.spans import Spans, id_of, parent_of, recorded_spans
from tests.programs import output_of

TRACE = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


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
    assert output_of(sys.executable, "-c", program) == "[]\n"


def test_work_that_failed_is_a_span_that_says_so(tracing: Tracing, spans: Spans) -> None:
    chain = make_chain([1])
    tracing.committed(chain.batches[0], 1, 2, RetryError("the server is away"))
    with pytest.raises(RetryError), tracing.publishing(chain.all_frames(), {}):
        raise RetryError("the broker is away")
    for name, word in (("commit", "server"), ("publish", "broker")):
        span = spans.only(f"orderchain.{name}")
        assert span.status.status_code is StatusCode.ERROR
        assert word in (span.status.description or "")
        assert (span.attributes or {})["error.type"] == "RetryError"


def test_headers_carry_a_trace_from_one_block_to_another(spans: Spans) -> None:
    tracer = trace.get_tracer("a service")
    with tracer.start_as_current_span("sender"):
        carried = {name: value.encode() for name, value in current_headers().items()}
    assert carried.keys() == {TRACEPARENT}
    with following(carried), tracer.start_as_current_span("handler"):
        pass
    assert parent_of(spans.only("handler")) == id_of(spans.only("sender"))
    assert current_headers() == {}  # the block has left nothing behind
