"""The tables of messages as the commands use them: connections, and acts by hand."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from chain_kernel.clients.postgres import require_sight
from chain_kernel.errors import SchemaError, SettingError
from chainctl.database import connected_to
from chainctl.schema.parts import has_part
from chainctl.topics import partition_of, unreadable_at
from outbox.roles import OUTBOX_OPERATOR
from outbox.session import tables_of_part

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from chainctl.database import Connection
    from chainctl.options import ActByHand
    from chainctl.settings import Settings
    from outbox.acts import Act, Changed, DeadLetter, DeadLetterFilter, DeadLetters, DeliveryFilter


@asynccontextmanager
async def outbox_of(settings: Settings, role: str = OUTBOX_OPERATOR) -> AsyncIterator[Connection]:
    """Connect to the database with the outbox's tables.

    Raises ConnectError, and SchemaError unless they are there, in our version.
    """
    async with connected_to(settings.database_dsn(), settings.connect_seconds, role) as connection:
        if not await has_part(connection, "outbox"):
            expected = "the outbox's (chainctl schema apply --part outbox)"
            raise SchemaError("schema", "none", expected)
        await require_sight(connection, tables_of_part("outbox"))
        yield connection


@asynccontextmanager
async def letters_of(settings: Settings) -> AsyncIterator[DeadLetters]:
    """Connect to a consumer's database, for its dead letters. Raises ConnectError."""
    from outbox.acts import DeadLetters

    async with connected_to(
        settings.database_dsn(), settings.connect_seconds, OUTBOX_OPERATOR
    ) as connection:
        await require_sight(connection, tables_of_part("inbox"))
        yield DeadLetters(connection)


async def pass_over(
    settings: Settings, consumer: str, source: str, offset: int, by: ActByHand
) -> int:
    """Let a consumer that is not running go on after a record that cannot be read; return where.

    Raises SettingError for a record that can be read, or that is not the consumer's next one;
    ConnectError, RetryError. The act is stored before the move: no move is without it, and a
    repeat of both makes the move that is missing.
    """
    from outbox.consumer.config import ConsumerConfig
    from outbox.consumer.record_source import ISOLATION_LEVEL, go_past, next_offset_of

    at = partition_of(source)
    config = ConsumerConfig(
        name=consumer, topics=(at[0],), kafka=settings.kafka_config(),
        database=settings.database_dsn(),
    )  # fmt: skip
    start = await next_offset_of(config, at)
    record, end = await unreadable_at(settings, at, start, ISOLATION_LEVEL)
    if record is None or record.offset != offset or record.missing is not None:
        expected = "the next record of this consumer, and one that cannot be read"
        raise SettingError("offset", offset, expected)
    next_offset = min(record.next_offset, end)
    if by.is_dry_run:
        return next_offset
    past = f"{source} from {offset} to {next_offset}: {record.reason}"

    async def store() -> None:
        async with letters_of(settings) as letters:
            if not await letters.pass_over(consumer, past, actor=by.actor, reason=by.reason):
                raise SettingError("consumer", consumer, "one of this database")

    await go_past(config, at, start, next_offset, store)
    return next_offset


async def act_on_deliveries(
    settings: Settings, what: Act, chosen: DeliveryFilter, by: ActByHand
) -> Sequence[Changed]:
    """Do `what` to the chosen deliveries, all or none; a dry run returns them as they are."""
    from outbox import acts

    async with outbox_of(settings) as connection:
        if by.is_dry_run:
            return await acts.would_act(connection, what, chosen)
        return await acts.act(connection, what, chosen, actor=by.actor, reason=by.reason)


async def act_on_letters(
    settings: Settings, act: str, chosen: DeadLetterFilter, by: ActByHand
) -> Sequence[DeadLetter]:
    """Retry or abandon the chosen dead letters, and return them; a dry run only returns them."""
    async with letters_of(settings) as letters:
        if by.is_dry_run:
            return await letters.list(chosen)
        return await letters.act(act, chosen, actor=by.actor, reason=by.reason)
