"""Setting destinations up in Python: as the command line does, and two at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from chain_kernel.errors import SettingError
from outbox import (
    Destination,
    change_destination,
    create_destination_topics,
    save_destinations,
)
from outbox.roles import OUTBOX_OPERATOR

if TYPE_CHECKING:
    from ..conftest import Sender

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]


async def test_two_changes_at_once_are_both_made(sender: Sender) -> None:
    first = await sender.connect(OUTBOX_OPERATOR)
    second = await sender.connect(OUTBOX_OPERATOR)
    await asyncio.gather(
        change_destination(first, "d", topic="t", tries_max=7),
        change_destination(second, "d", topic="t", consumers=("a",)),
    )
    await asyncio.gather(
        change_destination(first, "d", resend_seconds=7.0),
        change_destination(second, "d", payload_bytes_max=7),
    )
    assert await change_destination(first, "d") == Destination(
        name="d", topic="t", consumers=("a",), tries_max=7, resend_seconds=7.0, payload_bytes_max=7
    )


async def test_destination_is_saved_with_its_topics(sender: Sender) -> None:
    topic = f"saved.{sender.name}"
    wanted = Destination(name="d", topic=topic, consumers=("a",))
    operator = await sender.connect(OUTBOX_OPERATOR)
    await save_destinations(operator, [wanted], create_topics=sender.kafka, partitions=2)
    assert await sender.records(topic) == []  # raises for a topic that is not there
    assert await create_destination_topics(sender.kafka, [wanted]) == []


@pytest.mark.parametrize(
    "changes", [{}, {"topic": "t", "nothing": 1}, {"topic": "t", "tries_max": 0}, {"topic": ""}]
)
async def test_change_that_makes_no_sense_is_refused(
    sender: Sender, changes: dict[str, Any]
) -> None:
    operator = await sender.connect(OUTBOX_OPERATOR)
    with pytest.raises(SettingError):
        await change_destination(operator, "d", **changes)
    assert await sender.admin.fetchval("SELECT count(*) FROM outbox_destination") == 0
