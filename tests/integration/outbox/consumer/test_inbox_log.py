"""The sender's look into a consumer's inbox (mode 10): what is found there is not sent again."""

from collections.abc import AsyncIterator
from contextlib import nullcontext
from pathlib import Path
from uuid import UUID

import asyncpg
import pytest

from chain_kernel.errors import ConnectError
from outbox import InboxLog, draw_message_ids
from outbox.consumer.inbox import Inbox
from tests.pgbouncer import pgbouncer

from .test_inbox_schema import delivery


@pytest.fixture
async def applied(admin: asyncpg.Connection) -> list[UUID]:
    """Ids that the consumer has applied."""
    ids = draw_message_ids(3)
    inbox = await Inbox.open(admin, "clearing", 10.0)
    async with admin.transaction():
        await inbox.claim(admin, [delivery(one) for one in ids])
    return ids


@pytest.fixture(params=["direct", "through a pooler"])
async def log(
    database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[InboxLog]:
    direct = nullcontext(database)
    async with pgbouncer(database, tmp_path) if request.param != "direct" else direct as dsn:
        made = InboxLog(dsn, "clearing")
        yield made
        await made.close()


async def test_log_reports_which_messages_the_consumer_has_applied(
    log: InboxLog, applied: list[UUID]
) -> None:
    unknown = draw_message_ids(2)
    assert await log.applied([applied[0], unknown[0], applied[2]]) == {applied[0], applied[2]}
    assert await log.applied(unknown) == set()
    assert await log.applied([]) == set()


async def test_log_of_another_consumer_knows_nothing(database: str, applied: list[UUID]) -> None:
    other = InboxLog(database, "ledger")
    assert await other.applied(applied) == set()
    await other.close()


async def test_log_without_a_server_is_refused() -> None:
    with pytest.raises(ConnectError, match="database"):
        await InboxLog("postgresql://nobody@127.0.0.1:9/none", "clearing").applied([])
