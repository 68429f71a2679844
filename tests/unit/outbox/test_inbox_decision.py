from __future__ import annotations

import itertools

import pytest

from outbox.inbox_decision import Seen, Stored, Verdict, by_database, by_filter

FIELDS = ("is_applied", "is_parked", "is_dead", "is_key_parked", "is_below_horizon")
EVERY_STORED = [
    Stored(**dict(zip(FIELDS, values, strict=True)))
    for values in itertools.product([False, True], repeat=len(FIELDS))
]


@pytest.mark.parametrize("looked_before", [False, True])
def test_the_filter_settles_alone_only_what_is_done(looked_before: bool) -> None:
    assert by_filter(Seen.DONE, looked_before=looked_before) is Verdict.DONE
    assert by_filter(Seen.NEW, looked_before=looked_before) is None


def test_seen_but_not_finished_is_left_alone_once_and_then_asked_of_the_database() -> None:
    assert by_filter(Seen.WORKING, looked_before=False) is Verdict.WAIT
    assert by_filter(Seen.WORKING, looked_before=True) is None


@pytest.mark.parametrize("stored", EVERY_STORED)
def test_what_was_claimed_is_worked_on(stored: Stored) -> None:
    assert by_database(is_claimed=True, stored=stored) is Verdict.WORK


@pytest.mark.parametrize("stored", EVERY_STORED)
def test_what_was_not_claimed_is_never_worked_on(stored: Stored) -> None:
    verdict = by_database(is_claimed=False, stored=stored)
    assert verdict is not Verdict.WORK
    # Done is said of what was applied, and of nothing else: a confirm follows from it.
    assert (verdict is Verdict.DONE) == stored.is_applied


@pytest.mark.parametrize(
    ("stored", "verdict"),
    [
        (Stored(is_applied=True, is_below_horizon=True), Verdict.DONE),
        (Stored(is_dead=True, is_below_horizon=True), Verdict.DEAD),
        (Stored(is_parked=True, is_key_parked=True), Verdict.PARKED),
        (Stored(is_key_parked=True), Verdict.BEHIND),
        (Stored(is_below_horizon=True), Verdict.TOO_OLD),
        (Stored(is_below_horizon=True, is_key_parked=True), Verdict.TOO_OLD),
        (Stored(), Verdict.WAIT),
    ],
)
def test_each_reason_has_its_verdict(stored: Stored, verdict: Verdict) -> None:
    assert by_database(is_claimed=False, stored=stored) is verdict
