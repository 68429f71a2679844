"""Connects the parts of the outbox that are made meanwhile to servers in memory."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from random import Random
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

from chain_kernel.clients.topics import TopicDurability
from chain_kernel.testing.virtual_loop import stand_still
from outbox.testing.servers.kafka import MemoryConsumer, MemoryProducer, asked_at_once

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from outbox.testing.servers.kafka import Ask, Broker
    from outbox.testing.servers.sql import OutboxConnection, OutboxDatabase

_CONSUMING: Final = ("sender.results", "consumer.record_source", "callback.callback_service")
_PRODUCING: Final = ("sender.message_sender", "consumer.confirm_loop")


@contextmanager
def connected(
    databases: Mapping[str, OutboxDatabase], broker: Broker, ask: Ask = asked_at_once
) -> Iterator[None]:
    """Connect to these instead, by the names of the databases; `ask` is the way to the broker.

    The jitter of pauses is drawn by the broker's random.
    """

    async def open_connection(config: Any, **_: Any) -> OutboxConnection:  # noqa: ANN401
        return await databases[config.database.dbname].open()

    def make_consumer(_: Any, __: str, *topics: str, **options: Any) -> MemoryConsumer:  # noqa: ANN401
        reset = options.get("auto_offset_reset", "none")
        return MemoryConsumer(broker, ask, topics, options.get("group_id"), reset)

    async def is_broker_there(*_: object) -> bool:
        return await MemoryProducer(broker, ask).client.force_metadata_update()  # type: ignore[no-any-return]

    async def cause(_: object, error: Exception, __: float) -> Exception:
        return error

    async def keep_looking(*_: object) -> None:
        await stand_still()

    places: dict[str, Any] = {
        "chain_kernel.clients.session.open_connection": open_connection,
        "chain_kernel.clients.kafka_errors._find_cause": cause,
        "chain_kernel.clock.Random": lambda: Random(broker.random.random()),  # noqa: S311
        "outbox.sender.message_sender.is_broker_there": is_broker_there,
        **{f"outbox.{each}.make_consumer": make_consumer for each in _CONSUMING},
        **{
            f"outbox.{each}.make_producer": lambda *_, **__: MemoryProducer(broker, ask)
            for each in _PRODUCING
        },
    }
    with ExitStack() as stack:
        for place, double in places.items():
            stack.enter_context(patch(place, double))
        stack.enter_context(patch.object(TopicDurability, "keep_looking", keep_looking))
        yield
