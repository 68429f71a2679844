"""What callers of a chain saw: what they asked for, when, and every answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import pytest

from chain_kernel.errors import KeyConflict, KeyTooOld, OrderError, RetryError, StoppedError
from sequencer import Ack, Order, Sequencer, SequencerConfig
from sequencer.order import OrderColumns
from sequencer.submission import Refusal

SURELY_NOT = (OrderError, RetryError, StoppedError)
"""Errors that say that nothing was committed, and nothing will be."""


def is_sure(error: BaseException) -> bool:
    """Return whether `error` says that nothing was committed, nor will be."""
    return isinstance(error, SURELY_NOT) and not isinstance(error, KeyTooOld)


class Asked(NamedTuple):
    """An order, as far as a judge needs it."""

    key: str
    payload: bytes


Observation = tuple[float, str, tuple[Any, ...]]
"""When, in seconds since 1970; what, and its values."""


class Seen:
    """Observations for a judge, by the machine's clock, which the times of batches are of, too."""

    def __init__(self) -> None:
        self.events: list[Observation] = []

    def saw(self, what: str, *values: Any) -> None:
        self.events.append((time.time(), what, values))

    def asked(self, keys: Sequence[str]) -> None:
        self.saw("asked", list(keys))

    def answered(self, order: Asked, ack: Ack) -> None:
        self.saw("answered", order.key, order.payload, ack.id, ack.pid)

    def failed(self, keys: Sequence[str], said: str, *, is_sure: bool) -> None:
        """Take note of an error; `is_sure`: it says that nothing was committed, nor will be."""
        if is_sure:
            self.saw("not_done", keys, said)
        else:
            self.saw("unheard", keys)


_SEEN: dict[tuple[str, int], Seen] = {}


def seen_of(config: SequencerConfig) -> Seen:
    """Return what was seen of a chain by all its callers, in this process and in workers.

    A database is reached by many ways, and so it is known by its name.
    """
    name = str(config.database).rpartition("/")[2].partition("?")[0]
    return _SEEN.setdefault((name, config.chain_id), Seen())


def watch_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every call and every take-over of this process's sequencers seen, of this test alone."""
    _SEEN.clear()
    enter, queue_each = Sequencer.__aenter__, Sequencer.queue_each

    async def enter_seen(sequencer: Sequencer) -> Sequencer:
        began = time.time()
        await enter(sequencer)
        seen_of(sequencer._config).saw("looked", sequencer.stats().head_persisted, began)
        return sequencer

    async def queue_each_seen(sequencer: Sequencer, orders: Any, **given: Any) -> Any:
        seen, asked = seen_of(sequencer._config), _each(orders)
        # Never ended: an intake asks until they are rows.
        seen.asked([order.key for order in asked])
        outcomes = await queue_each(sequencer, orders, **given)
        outcomes.add_done_callback(partial(_settled, seen, asked))
        return outcomes

    monkeypatch.setattr(Sequencer, "__aenter__", enter_seen)
    monkeypatch.setattr(Sequencer, "queue_each", queue_each_seen)
    monkeypatch.setattr(Sequencer, "submit", _watched(Sequencer.submit, _one))
    monkeypatch.setattr(Sequencer, "submit_many", _watched(Sequencer.submit_many, _many))


def _each(orders: OrderColumns | Sequence[Order | Refusal]) -> list[Asked]:
    if isinstance(orders, OrderColumns):
        return list(map(Asked, orders.keys, orders.payloads))
    return [Asked(each.key or "", getattr(each, "payload", b"")) for each in orders]


def _settled(seen: Seen, asked: Sequence[Asked], outcomes: asyncio.Future[Any]) -> None:
    if outcomes.cancelled() or outcomes.exception() is not None:
        return
    for order, outcome in zip(asked, outcomes.result(), strict=True):
        if isinstance(outcome, Ack):
            seen.answered(order, outcome)


def _one(key: str, payload: bytes, *_: object) -> list[Asked]:
    return [Asked(key, payload)]


def _many(orders: Sequence[Order]) -> list[Asked]:
    return [Asked(order.key, order.payload) for order in orders]


def _watched(call: Any, orders_of: Callable[..., list[Asked]]) -> Any:
    async def watched(sequencer: Sequencer, *given: Any, **settings: Any) -> Any:
        seen, orders = seen_of(sequencer._config), orders_of(*given)
        seen.asked([order.key for order in orders])
        try:
            answer = await call(sequencer, *given, **settings)
        except BaseException as error:
            seen.failed([order.key for order in orders], repr(error), is_sure=is_sure(error))
            if isinstance(error, KeyConflict) and error.id is not None and orders_of is _one:
                seen.saw("conflict", *orders[0], error.id)
            raise
        for order, ack in zip(orders, [answer] if orders_of is _one else answer, strict=True):
            seen.answered(order, ack)
        return answer

    return watched
