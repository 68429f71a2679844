import logging
from functools import partial

import pytest

from chain_kernel.text import SummedLog, counted

LOG = logging.getLogger("orderchain.test")


def rejected(place: str, count: int) -> str:
    return f"rejected {counted(count, 'record')}, such as {place}"


def test_kind_is_logged_at_once_and_then_as_a_sum_per_interval_and_at_the_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("chain_kernel.text.monotonic", lambda: now)
    log = SummedLog(LOG, logging.WARNING, 30.0)
    for position in range(1_000):
        now = 100.0 + position / 8
        log.add("key", 2, partial(rejected, str(position)))
    assert caplog.messages == [
        "rejected 2 records, such as 0",
        "rejected 480 records, such as 240",
        "rejected 480 records, such as 480",
        "rejected 480 records, such as 720",
        "rejected 480 records, such as 960",
    ]
    caplog.clear()
    log.log()
    log.log()
    assert caplog.messages == ["rejected 78 records, such as 999"]


def test_line_that_repeats_says_how_often_until_it_is_over(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chain_kernel.text.monotonic", lambda: 0.0)
    log = SummedLog(LOG, logging.WARNING)
    for _ in range(1_001):
        log.repeat("the database is away")
    log.repeat("the database starts")
    assert caplog.messages == ["the database is away", "the database starts"]
    log.log()
    log.repeat("the database is away")  # another outage is logged at once
    assert caplog.messages[2:] == ["the database is away (1,000 times)", "the database is away"]
