"""Pauses between tries grow, are bounded, and are not the same for any two receivers."""

from __future__ import annotations

from random import Random

from matcher_receiver.backoff import FIRST_SECONDS, Backoff


def test_pauses_double_up_to_the_bound_each_within_half_and_whole_of_its_step() -> None:
    backoff = Backoff(2.0, Random(1))
    for tries in range(2_000):
        step = min(2.0, FIRST_SECONDS * 2.0 ** min(tries, 40))
        assert step / 2 <= backoff.next_seconds() <= step


def test_pauses_of_two_receivers_differ() -> None:
    pauses = [[Backoff(2.0, Random(seed)).next_seconds() for _ in range(3)] for seed in range(20)]
    assert len({tuple(pause) for pause in pauses}) == 20


def test_success_begins_the_pauses_anew() -> None:
    backoff = Backoff(2.0, Random(1))
    for _ in range(10):
        backoff.next_seconds()
    backoff.reset()
    assert backoff.next_seconds() <= FIRST_SECONDS
