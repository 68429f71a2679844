from __future__ import annotations

import itertools

import pytest

from outbox.consumer.decisions import (
    InboxVerdict,
    Seen,
    StoredDelivery,
    by_database,
    by_filter,
)

FIELDS = ("is_applied", "is_parked", "is_dead", "is_key_parked", "is_below_horizon")
EVERY_STORED = [
    StoredDelivery(**dict(zip(FIELDS, values, strict=True)))
    for values in itertools.product([False, True], repeat=len(FIELDS))
]


@pytest.mark.parametrize("looked_before", [False, True])
def test_the_filter_settles_alone_only_what_is_done(looked_before: bool) -> None:
    assert by_filter(Seen.DONE, looked_before=looked_before) is InboxVerdict.DONE
    assert by_filter(Seen.NEW, looked_before=looked_before) is None


def test_seen_but_not_finished_is_left_alone_once_and_then_asked_of_the_database() -> None:
    assert by_filter(Seen.WORKING, looked_before=False) is InboxVerdict.WAIT
    assert by_filter(Seen.WORKING, looked_before=True) is None


@pytest.mark.parametrize("stored", EVERY_STORED)
def test_what_was_claimed_is_worked_on(stored: StoredDelivery) -> None:
    assert by_database(is_claimed=True, stored=stored) is InboxVerdict.WORK


@pytest.mark.parametrize("stored", EVERY_STORED)
def test_what_was_not_claimed_is_never_worked_on(stored: StoredDelivery) -> None:
    verdict = by_database(is_claimed=False, stored=stored)
    assert verdict is not InboxVerdict.WORK
    # Done is said of what was applied, and of nothing else: a confirm follows from it.
    assert (verdict is InboxVerdict.DONE) == stored.is_applied


@pytest.mark.parametrize(
    ("stored", "verdict"),
    [
        (StoredDelivery(is_applied=True, is_below_horizon=True), InboxVerdict.DONE),
        (StoredDelivery(is_dead=True, is_below_horizon=True), InboxVerdict.DEAD),
        (StoredDelivery(is_parked=True, is_key_parked=True), InboxVerdict.PARKED),
        (StoredDelivery(is_key_parked=True), InboxVerdict.KEY_PARKED),
        (StoredDelivery(is_below_horizon=True), InboxVerdict.TOO_OLD),
        (StoredDelivery(is_below_horizon=True, is_key_parked=True), InboxVerdict.TOO_OLD),
        (StoredDelivery(), InboxVerdict.WAIT),
    ],
)
def test_each_reason_has_its_verdict(stored: StoredDelivery, verdict: InboxVerdict) -> None:
    assert by_database(is_claimed=False, stored=stored) is verdict
