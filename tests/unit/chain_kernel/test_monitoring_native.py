"""Native histograms: which bucket a value is in, and what `/metrics` answers to whom."""

from __future__ import annotations

import math
from bisect import bisect_left
from io import BytesIO
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessages
from google.protobuf.proto import parse_length_prefixed
from hypothesis import given
from hypothesis import strategies as st

from chain_kernel.monitoring import BUCKET_SECONDS, Buckets, Histogram, Monitor, Sample

if TYPE_CHECKING:
    from collections.abc import Iterable

PROTOBUF = (
    "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
)
OLD_PROMETHEUS = (
    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,"
    "application/openmetrics-text;version=1.0.0;q=0.8,application/openmetrics-text;version=0.0.1;"
    "q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
TEXT_FIRST = f"text/plain;version=0.0.4;q=0.6,{PROTOBUF};q=0.5,*/*;q=0.1"

# The fields that Prometheus reads, by their numbers in its metrics.proto: name, number, type.
TYPES = {
    "LabelPair": ["name 1 string", "value 2 string"],
    "Gauge": ["value 1 double"],
    "Counter": ["value 1 double"],
    "Bucket": ["cumulative_count 1 uint64", "upper_bound 2 double"],
    "BucketSpan": ["offset 1 sint32", "length 2 uint32"],
    "Histogram": [
        "sample_count 1 uint64", "sample_sum 2 double", "bucket 3 *Bucket", "schema 5 sint32",
        "zero_threshold 6 double", "zero_count 7 uint64", "positive_span 12 *BucketSpan",
        "positive_delta 13 *sint64",
    ],
    "Metric": ["label 1 *LabelPair", "gauge 2 Gauge", "counter 3 Counter", "histogram 7 Histogram"],
    "MetricFamily": ["name 1 string", "help 2 string", "type 3 int32", "metric 4 *Metric"],
}  # fmt: skip


def field_of(text: str) -> FieldDescriptorProto:
    name, number, kind = text.split()
    label = "LABEL_REPEATED" if kind.startswith("*") else "LABEL_OPTIONAL"
    kind = kind.removeprefix("*")
    found = FieldDescriptorProto(name=name, number=int(number), label=label)
    if kind in TYPES:
        found.type_name = f".test.{kind}"
    else:
        found.type = FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
    return found


MESSAGES = [
    DescriptorProto(name=name, field=[field_of(each) for each in fields])
    for name, fields in TYPES.items()
]
FILE = FileDescriptorProto(name="test.proto", package="test", message_type=MESSAGES)
FAMILY = GetMessages([FILE], pool=DescriptorPool())["test.MetricFamily"]


def decoded(body: bytes) -> list[Any]:
    """Return the delimited messages, as Google's library reads them."""
    stream = BytesIO(body)
    found = list(iter(lambda: parse_length_prefixed(FAMILY, stream), None))
    for family in found:
        size = family.ByteSize()
        family.DiscardUnknownFields()
        assert family.ByteSize() == size  # no field but those above
    return found


class Part:
    def __init__(self, *samples: Sample) -> None:
        self.given = samples

    def samples(self) -> Iterable[Sample]:
        return self.given

    def why_not_ready(self) -> str | None:
        return None


def histogram_of(*values: float) -> Histogram:
    buckets = Buckets()
    for value in values:
        buckets.add(value)
    return buckets.histogram


def native_counts(histogram: Any) -> dict[int, int]:
    """Return a decoded histogram's counts by the number of their bucket, as Prometheus does it."""
    found, number, count = {}, 0, 0
    deltas = iter(histogram.positive_delta)
    for span in histogram.positive_span:
        number += span.offset
        for _ in range(span.length):
            count += next(deltas)
            found[number] = count
            number += 1
    assert next(deltas, None) is None
    return found


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (1.0, 0), (1.0 + 2**-52, 1), (2.0, 8), (2.0 + 2**-51, 9), (0.5, -8), (0.25, -16),
        (2**0.125, 1), (3.0, 13), (0.003, -67), (1e-9, -239), (50_000.0, 125),
    ],
)  # fmt: skip
def test_value_is_in_the_bucket_whose_upper_bound_is_not_below_it(
    value: float, number: int
) -> None:
    assert histogram_of(value).native == {number: 1}


@given(st.floats(1e-12, 1e9))
def test_bucket_of_any_value_ends_at_it_or_less_than_9_percent_above(value: float) -> None:
    [number] = histogram_of(value).native
    rounding = 1 + 1e-15  # Prometheus has its bounds with 16 digits
    assert 2 ** ((number - 1) / 8) / rounding <= value <= 2 ** (number / 8) * rounding


@given(st.lists(st.floats(0, 1e4)))
def test_classic_buckets_keep_their_bounds_and_both_count_every_value(values: list[float]) -> None:
    histogram = histogram_of(*values)
    classic = [0] * (len(BUCKET_SECONDS) + 1)
    for value in values:
        classic[bisect_left(BUCKET_SECONDS, value)] += 1
    assert list(histogram.counts) == classic
    assert histogram.zeros + sum(histogram.native.values()) == len(values)


def test_zero_is_in_a_bucket_of_its_own() -> None:
    histogram = histogram_of(0.0, 0.0, 1.0)
    assert (histogram.zeros, histogram.native) == (2, {0: 1})


@given(st.lists(st.one_of(st.just(0.0), st.floats(1e-9, 1e5)), max_size=300))
def test_protobuf_of_a_histogram_is_read_back_by_another_decoder(values: list[float]) -> None:
    given_ = histogram_of(*values)
    sample = Sample("x_seconds", "histogram", given_, "X.", {"chain": "1", "name": "café"})
    family = decoded(Monitor(Part(sample)).metrics(PROTOBUF).body)[0]
    assert (family.name, family.help, family.type) == ("x_seconds", "X.", 4)
    [metric] = family.metric
    assert [(each.name, each.value) for each in metric.label] == [("chain", "1"), ("name", "café")]
    found = metric.histogram
    assert (found.sample_count, found.sample_sum) == (len(values), sum(values))
    assert (found.schema, found.zero_threshold) == (3, 2.0**-128)
    assert found.zero_count == values.count(0.0)
    assert native_counts(found) == given_.native
    assert [bucket.upper_bound for bucket in found.bucket] == [*BUCKET_SECONDS, math.inf]
    assert found.bucket[-1].cumulative_count == len(values)
    for bucket in found.bucket:
        at_most = sum(value <= bucket.upper_bound for value in values)
        assert bucket.cumulative_count == at_most


def test_neighbours_are_one_span_and_a_hole_begins_another() -> None:
    histogram = Histogram(counts=(0,) * 14 + (9,), native={-3: 4, -2: 1, 1: 4})
    part = Part(Sample("x_seconds", "histogram", histogram, "X.", {}))
    body = Monitor(part).metrics(PROTOBUF).body
    found = decoded(body)[0].metric[0].histogram
    assert [(each.offset, each.length) for each in found.positive_span] == [(-3, 2), (2, 1)]
    assert list(found.positive_delta) == [4, -3, 3]


def test_protobuf_has_counters_and_gauges_under_the_names_of_the_text() -> None:
    labels = [{"chain": str(number)} for number in (1, 2)]
    samples = [Sample("x_total", "counter", 300.0, "X's.", each) for each in labels]
    families = decoded(Monitor(Part(*samples)).metrics(PROTOBUF).body)
    assert [(each.name, each.type) for each in families] == [
        ("x_total", 0),
        ("orderchain_ready", 1),
    ]
    assert [each.counter.value for each in families[0].metric] == [300.0, 300.0]
    assert [each.label[0].value for each in families[0].metric] == ["1", "2"]
    assert families[1].metric[0].gauge.value == 1.0


@pytest.mark.parametrize("accept", [PROTOBUF, OLD_PROMETHEUS, f"{PROTOBUF};q=0.6,text/plain;q=0.5"])
def test_header_that_prefers_protobuf_gets_it(accept: str) -> None:
    page = Monitor(Part()).metrics(accept)
    assert page.media_type == PROTOBUF
    assert decoded(page.body)


@pytest.mark.parametrize(
    "accept",
    [
        "", "*/*", "text/html,*/*;q=0.8", TEXT_FIRST, f"{PROTOBUF};q=0", f"{PROTOBUF};q=x",
        PROTOBUF.replace("delimited", "text"), "application/vnd.google.protobuf", ";;,;q=",
    ],
)  # fmt: skip
def test_any_other_header_gets_text(accept: str) -> None:
    page = Monitor(Part()).metrics(accept)
    assert page.media_type.startswith("text/plain")
    assert page.body.startswith(b"# HELP orderchain_ready ")
