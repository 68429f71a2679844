"""Puts the outbox's servers in memory under its parts, so that two runs take the same steps."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch
from uuid import UUID

from chain_kernel.testing.virtual_loop import virtual_clock
from outbox.message import MessageIds
from outbox.testing.servers.connected import connected
from outbox.testing.servers.kafka import asked_at_once

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from outbox.testing.servers.kafka import Ask, Broker
    from outbox.testing.servers.sql import OutboxDatabase

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
    """As `connected`; all that is random is drawn by the broker's, and no order is left open."""
    random = broker.random
    places: dict[str, Any] = {
        "outbox.sender.message_sender.time": SimpleNamespace(
            time_ns=lambda: virtual_clock().wall_ns()
        ),
        "outbox.message._ids": MessageIds(lambda: virtual_clock().wall_ns(), random.randbytes),
        **{
            f"outbox.{each}.uuid4": lambda: UUID(bytes=random.randbytes(16), version=4)
            for each in _DRAWING
        },
    }
    with ExitStack() as stack:
        stack.enter_context(connected(databases, broker, ask))
        for place, double in places.items():
            stack.enter_context(patch(place, double))
        stack.enter_context(patch.object(asyncio.TaskGroup, "_abort", _abort_in_order))
        yield
