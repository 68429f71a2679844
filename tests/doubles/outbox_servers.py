"""Puts the outbox's servers in memory under the parts that are made meanwhile."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, contextmanager
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch
from uuid import UUID

from chain_kernel.clients.topics import TopicDurability
from chain_kernel.testing.virtual_loop import stand_still, virtual_clock
from outbox.message import MessageIds
from outbox.testing.servers.kafka import MemoryConsumer, MemoryProducer, asked_at_once

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from outbox.testing.servers.kafka import Ask, Broker
    from outbox.testing.servers.sql import OutboxConnection, OutboxDatabase

_CONSUMING: Final = ("sender.results", "consumer.record_source", "callback.callback_service")
_PRODUCING: Final = ("sender.message_sender", "consumer.confirm_loop")
_DRAWING: Final = (
    "sender.relay", "sender.sweep", "sender.check_back", "callback.callback_service",
    "callback.checked_sender",
)  # fmt: skip


def _abort_in_order(group: Any) -> None:
    """End the tasks of a group as they were made: it keeps them in the order of their addresses."""
    group._aborting = True
    for task in sorted(group._tasks, key=lambda task: (len(task.get_name()), task.get_name())):
        if not task.done():
            task.cancel()


@contextmanager
def servers_in_memory(
    databases: Mapping[str, OutboxDatabase], broker: Broker, ask: Ask = asked_at_once
) -> Iterator[None]:
    """Connect to these instead, by the names of the databases; `ask` is the way to the broker.

    What is random is drawn by the broker's.
    """
    random = broker.random

    async def open_connection(config: Any, **_: Any) -> OutboxConnection:
        return await databases[config.database.dbname].open()

    def make_consumer(_: Any, __: str, *topics: str, **options: Any) -> MemoryConsumer:
        reset = options.get("auto_offset_reset", "none")
        return MemoryConsumer(broker, ask, topics, options.get("group_id"), reset)

    async def is_broker_there(*_: Any) -> bool:
        return await MemoryProducer(broker, ask).client.force_metadata_update()  # type: ignore[no-any-return]

    async def cause(_: Any, error: Exception, __: float) -> Exception:
        return error

    async def keep_looking(*_: Any) -> None:
        await stand_still()

    places: dict[str, Any] = {
        "chain_kernel.clients.session.open_connection": open_connection,
        "chain_kernel.clients.kafka_errors._find_cause": cause,
        "chain_kernel.clock.Random": lambda: Random(random.random()),
        "outbox.sender.message_sender.is_broker_there": is_broker_there,
        "outbox.sender.message_sender.time": SimpleNamespace(
            time_ns=lambda: virtual_clock().wall_ns()
        ),
        "outbox.message._ids": MessageIds(lambda: virtual_clock().wall_ns(), random.randbytes),
        **{f"outbox.{each}.make_consumer": make_consumer for each in _CONSUMING},
        **{
            f"outbox.{each}.make_producer": lambda *_, **__: MemoryProducer(broker, ask)
            for each in _PRODUCING
        },
        **{
            f"outbox.{each}.uuid4": lambda: UUID(bytes=random.randbytes(16), version=4)
            for each in _DRAWING
        },
    }
    with ExitStack() as stack:
        for place, double in places.items():
            stack.enter_context(patch(place, double))
        stack.enter_context(patch.object(asyncio.TaskGroup, "_abort", _abort_in_order))
        stack.enter_context(patch.object(TopicDurability, "keep_looking", keep_looking))
        yield
