"""Progress that could not be written, and confirms of strangers; mode 4 has the other tests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

import outbox.parts
import outbox.sender.results
from chain_kernel.errors import RetryError
from outbox import Confirm, Destination, Progress, RelayConfig
from outbox.records import RETRYING, encode_confirms, proof_of, token_of
from outbox.sender.config import RelayStats
from outbox.sender.message_sender import TopicErrors
from outbox.sender.results import ConfirmIntake
from tests.deadlines import deadline

TOPIC, CONSUMER, KEY = "trades", "clearing", bytes(range(32))


class Topic:
    """The confirm topic, as each member of the group finds it in turn."""

    def __init__(self, *offsets: int | None) -> None:
        self._offsets = iter(offsets)
        self.is_read = asyncio.Event()
        self.partitions: set[int] = set()

    def consumer(self, *_arguments: object, **_options: object) -> Topic:
        """Stand for what makes a consumer: the next member."""
        offset = next(self._offsets, None)
        shown = [] if offset is None else [Progress(TOPIC, 0, offset)]
        proof = proof_of(token_of(KEY, bytes(16)), CONSUMER, RETRYING, 0)
        parked = Confirm(bytes(16), RETRYING, 0, 0, 0, proof)
        value = encode_confirms(CONSUMER, [parked], shown)
        self._records = [SimpleNamespace(topic=f"{TOPIC}.confirms", value=value, headers=())]
        return self

    async def start(self) -> None: ...

    async def topics(self) -> set[str]:
        return {f"{TOPIC}.confirms"}

    def subscribe(self, topics: list[str]) -> None:
        assert topics == [f"{TOPIC}.confirms"]

    def assignment(self) -> set[int]:
        return self.partitions

    async def stop(self) -> None: ...

    async def commit(self) -> None: ...

    async def getmany(self, **_: object) -> dict[str, list[SimpleNamespace]]:
        records, self._records = self._records, []
        if not records:
            self.is_read.set()
            await asyncio.Event().wait()
        return {TOPIC: records}


class Store:
    """Keeps progress, once the database is back."""

    def __init__(self) -> None:
        self.is_away = True
        self.saved: list[Mapping[Any, int]] = []

    async def confirm_key(self) -> bytes:
        return KEY

    async def postpone(self, retries: object) -> None: ...

    async def save_progress(self, progress: Mapping[Any, int]) -> None:
        if self.is_away:
            self.is_away = False
            raise RetryError("the database is away")
        self.saved.append(progress)


async def take_in(
    monkeypatch: pytest.MonkeyPatch, topic: Topic, store: Store, consumer: str = CONSUMER
) -> None:
    """Run an intake for a destination of `consumer` until it has read the topic."""
    monkeypatch.setattr(outbox.sender.results, "make_consumer", topic.consumer)
    monkeypatch.setattr(outbox.parts, "_PAUSE_SECONDS", (0.001, 0.001))
    monkeypatch.setattr(outbox.sender.results, "_PROGRESS_SECONDS", 0.0)
    destination = Destination(name="clearing", topic=TOPIC, consumers=(consumer,))
    sending = cast("Any", SimpleNamespace(destinations={destination.name: destination}))
    config = RelayConfig(database="postgresql://d", kafka="k:1")
    stats, topic_errors = RelayStats(), TopicErrors()
    intake = ConfirmIntake(config, cast("Any", store), sending, Mock(), stats, topic_errors)
    running = asyncio.create_task(intake.run())
    async with deadline():
        await topic.is_read.wait()
    assert (intake.reads_since is not None) == bool(topic.partitions)
    running.cancel()
    await asyncio.wait([running])
    assert stats.retrying > 0


async def test_progress_that_was_not_written_is_forgotten_since_it_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Another relay had the partition meanwhile, and has written and committed what came next.
    topic, store = Topic(7, None), Store()
    topic.partitions.add(0)
    await take_in(monkeypatch, topic, store)
    assert not store.is_away
    assert store.saved == []


async def test_consumer_that_its_destination_does_not_list_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await take_in(monkeypatch, Topic(None), Store(), consumer="clearing-service")
    line = (
        "no destination with the confirm topic trades.confirms lists the consumer clearing, "
        "which has applied or parked messages: 1"
    )
    assert (outbox.sender.results.__name__, logging.WARNING, line) in caplog.record_tuples
