"""What filters of a query leave of what a reader asks for."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest

from chain_kernel.errors import SettingError
from chain_verifier.dataframe.options import ChainOptions

OPTIONS = ChainOptions.of({"url": "postgresql://h/d", "chains": "1-3", "start": "5", "until": "90"})
TOPIC = {"source": "topic", "chains": "1", "kafka": "h:1"}


class Filter(NamedTuple):
    """A filter as Spark 4.1 and newer give it."""

    attribute: tuple[str, ...]
    value: Any


def filter_of(kind: str, name: str, value: Any) -> Any:
    return type(kind, (Filter,), {})((name,), value)


@pytest.mark.parametrize(
    ("kind", "value", "left"),
    [
        ("EqualTo", 7, (6, 7)),
        ("GreaterThan", 7, (7, 90)),
        ("GreaterThanOrEqual", 7, (6, 90)),
        ("GreaterThanOrEqual", 3, (5, 90)),
        ("LessThan", 7, (5, 7)),
        ("LessThanOrEqual", 7, (5, 7)),
        ("LessThan", 700, (5, 90)),
        ("In", (30, 9, 12), (8, 30)),
        ("In", (30, None, 9), (8, 30)),
        ("In", (None,), (5, 90)),
        ("IsNotNull", None, (5, 90)),
        ("EqualTo", -4, (5, -4)),
    ],
)
def test_ids_are_bounded_by_filters(kind: str, value: Any, left: tuple[int, int]) -> None:
    narrowed = OPTIONS.narrowed([filter_of(kind, "id", value)])
    assert (narrowed.start, narrowed.until) == left


def test_chains_are_those_that_all_filters_name() -> None:
    filters = [filter_of("In", "chain_id", (2, 3, 9)), filter_of("EqualTo", "chain_id", 3)]
    assert OPTIONS.narrowed(filters).chains == (3,)
    assert OPTIONS.narrowed([filter_of("EqualTo", "chain_id", 9)]).chains == ()
    assert OPTIONS.narrowed([filter_of("In", "chain_id", (None, 2, 3))]).chains == (2, 3)
    assert OPTIONS.narrowed([filter_of("EqualTo", "chain_id", None)]) == OPTIONS


def test_times_are_bounded_in_nanoseconds() -> None:
    assert OPTIONS.times_ns == (None, None)
    at = datetime(2001, 9, 9, 1, 46, 40, tzinfo=UTC)
    narrowed = OPTIONS.narrowed([filter_of("EqualTo", "event_time", at)])
    assert narrowed.times_ns == (10**18, 10**18 + 999)
    narrowed = narrowed.narrowed([filter_of("GreaterThan", "event_time_ns", 10**18 + 7)])
    assert narrowed.times_ns == (10**18 + 7, 10**18 + 999)


def test_other_columns_and_filters_change_nothing() -> None:
    filters = [filter_of("EqualTo", "key", "a#1"), filter_of("StringStartsWith", "id", "1")]
    assert OPTIONS.narrowed(filters) == OPTIONS


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "url"),
        ({"source": "topic", "chains": "1"}, "kafka"),
        ({"source": "topic", "kafka": "h:1"}, "chains"),
        ({"source": "archive"}, "source"),
        ({"source": "archive:"}, "source"),
        ({"source": "database:x", "url": "postgresql://h/d"}, "source"),
        ({"source": "topic:", "chains": "1", "kafka": "h:1"}, "source"),
        ({"url": "postgresql://h/d", "until": "x"}, "until"),
        (TOPIC | {"kafka.ssl_cafile": "/no"}, "ssl_cafile"),
    ],
)
def test_options_that_fit_no_source_are_refused(options: dict[str, str], named: str) -> None:
    with pytest.raises(SettingError, match=named):
        ChainOptions.of(options)
