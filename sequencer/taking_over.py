"""Raising the epoch: what ends an old leader, and makes a new one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from orderchain.batch import Term
from orderchain.errors import Fenced, OrderchainError
from orderchain.sql import load_sql

if TYPE_CHECKING:
    from uuid import UUID

    import asyncpg

_SQL: Final = load_sql("sequencer", "queries.sql")
_EPOCH_START: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

_TERMINATE_MS: Final = 5_000
"""How long the end of the old backend is awaited: a live one ends at once, and one that the kernel
holds in I/O is waited for by the compare-and-set behind it anyway."""


async def raise_epoch(
    connection: asyncpg.Connection,
    database_id: UUID,
    owner: str,
    nonce: bytes,
    seen: tuple[int, int, bytes],
    counter: int | None,
) -> Term:
    """End the old leader's backend, and set the next epoch and `nonce` by compare-and-set.

    `seen` is chain, epoch and nonce as they were observed, `counter` the lease's, None where the
    lease is our own. Raises Fenced when one of them has moved, and what the driver raises.
    """
    await connection.execute(_SQL["end_backend"], *seen, counter, _TERMINATE_MS)
    async with connection.transaction():
        return await _raise_epoch(connection, database_id, owner, nonce, seen, counter)


async def _raise_epoch(
    connection: asyncpg.Connection,
    database_id: UUID,
    owner: str,
    nonce: bytes,
    seen: tuple[int, int, bytes],
    counter: int | None,
) -> Term:
    chain_id, epoch, _ = seen
    head = await connection.fetchrow(_SQL["take_over"], *seen, nonce, owner)
    if head is None:
        raise Fenced(chain_id, epoch)
    if await connection.fetchval(_SQL["take_lease"], chain_id, counter, head["epoch"]) is None:
        raise Fenced(chain_id, epoch)
    committed_at = await connection.fetchval(_SQL["last_committed_at"], chain_id, head["last_id"])
    if committed_at is None:
        raise OrderchainError(
            f"chain {chain_id}: the head stands at {head['last_id']}, where no batch ends"
        )
    return Term(
        chain_id=chain_id,
        database_id=database_id,
        epoch=head["epoch"],
        nonce=nonce,
        last_id=head["last_id"],
        last_seal=head["last_seal"],
        last_committed_at_us=(committed_at - _EPOCH_START) // _MICROSECOND,
        published_id=head["published_id"],
        topic=head["topic"],
        partition=head["topic_partition"],
        key_salt=head["key_salt"] % 2**64,
        partition_ids=head["partition_ids"],
    )
