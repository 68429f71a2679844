"""The take-over in PostgreSQL: ends the old leader's backend, and raises the epoch."""

from __future__ import annotations

import logging
import os
from secrets import randbelow
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import astuple

from chain_kernel.clients.postgres import server_identity
from chain_kernel.clock import ns_of
from chain_kernel.errors import Fenced, OrderchainError
from chain_kernel.frame import FRAME_KEY_BYTES, NONCE_BYTES
from chain_kernel.model import TERM_SPREAD_IDS, ServerIdentity, Term
from chain_kernel.sql import load_sql

if TYPE_CHECKING:
    from chain_kernel.clients.postgres import Connection, Record
    from sequencer.stores.session import LeaderSession


_log = logging.getLogger(__name__)

_SQL: Final = load_sql("sequencer", "queries.sql")

_TERMINATE_SECONDS_MAX: Final = 5.0
_TERMINATE_SHARE: Final = 0.5
"""Time that the end of the old backend is awaited, at most and as a share of a commit's deadline: a
live one ends at once, and the compare-and-set that follows waits for its locks anyway."""


class Secrets(NamedTuple):
    """The secrets that a take-over draws: never drawn before, and impossible to guess."""

    nonce: bytes
    """Published with every frame of the term."""
    frame_key: bytes
    """Never published."""
    spread: int
    """Separates the ids of the term from those of another life of the chain."""

    @classmethod
    def draw(cls) -> Secrets:
        """Return new secrets."""
        return cls(os.urandom(NONCE_BYTES), os.urandom(FRAME_KEY_BYTES), randbelow(TERM_SPREAD_IDS))

    def __repr__(self) -> str:
        return f"Secrets(nonce={self.nonce.hex()})"


async def raise_epoch(
    session: LeaderSession,
    owner: str,
    drawn: Secrets,
    seen: tuple[int, int, bytes],
    counter: int | None,
    lease_seconds: float,
    commit_seconds: float,
    *,
    is_published: bool,
) -> Term:
    """End the old leader's backend, set the next epoch by compare-and-set, and store its term.

    `seen` is chain, epoch and nonce as they were observed, `counter` the lease's, None if the lease
    is our own. `lease_seconds` is stored for operators; `commit_seconds` is the deadline;
    `is_published` is stored for receivers.
    Raises Fenced when one of them has moved, and what the driver raises.
    """
    seconds = min(_TERMINATE_SECONDS_MAX, commit_seconds * _TERMINATE_SHARE)
    connection = await session.idle()
    await connection.execute(_SQL["end_backend"], *seen, counter, int(seconds * 1_000))
    async with connection.transaction():
        values = (*seen, drawn.nonce, owner, is_published)
        return await _raise_epoch(session, connection, drawn, values, counter, lease_seconds)


async def _raise_epoch(
    session: LeaderSession,
    connection: Connection,
    drawn: Secrets,
    values: tuple[int, int, bytes, bytes, str, bool],
    counter: int | None,
    lease_seconds: float,
) -> Term:
    chain_id, epoch, _, nonce, owner, is_published = values
    # Now: a standby that was promoted since keeps its sessions.
    session.server = await server_identity(connection)
    head = await connection.fetchrow(_SQL["take_over"], *values)
    if head is None:
        raise Fenced(chain_id, epoch)
    published_id = head["published_id"]
    if published_id < head["last_id"] and not (head["was_published"] and is_published):
        # Rows of a term without a broker, or before one, are never published.
        skipped = (chain_id, head["epoch"], nonce, published_id, head["last_id"])
        await connection.execute(_SQL["skip_published"], *skipped)
        published_id = head["last_id"]
    lease = (chain_id, counter, head["epoch"], lease_seconds)
    if await connection.fetchval(_SQL["take_lease"], *lease) is None:
        raise Fenced(chain_id, epoch)
    committed_at = await connection.fetchval(_SQL["last_committed_at"], chain_id, head["last_id"])
    if committed_at is None:
        raise OrderchainError(
            f"chain {chain_id}: the head is at {head['last_id']}, where no batch ends"
        )
    await _begin_term(connection, head, owner, drawn, (chain_id, session.server))
    return Term(
        chain_id=chain_id,
        database_id=session.database_id,
        epoch=head["epoch"],
        nonce=drawn.nonce,
        frame_key=drawn.frame_key,
        last_id=head["last_id"],
        last_seal=head["last_seal"],
        last_committed_at_us=ns_of(committed_at) // 1_000,
        published_id=published_id,
        topic=head["topic"],
        partition=head["topic_partition"],
        key_salt=head["key_salt"] % 2**64,
        partition_ids=head["partition_ids"],
        server=session.server,
        spread=drawn.spread,
    )


async def _begin_term(
    connection: Connection,
    head: Record,
    owner: str,
    drawn: Secrets,
    place: tuple[int, ServerIdentity],
) -> None:
    """Store the term in the transaction that raises the epoch: no frame is sent without it."""
    chain_id, server = place
    last = await connection.fetchrow(_SQL["last_term"], chain_id)
    if last is not None and (note := server_note(ServerIdentity(*last), server)):
        _log.warning("chain %d: %s", chain_id, note)
    keys = (drawn.nonce, drawn.frame_key)
    values = (chain_id, head["epoch"], *keys, owner, head["last_id"], *astuple(server))
    await connection.execute(_SQL["begin_term"], *values)


def server_note(stored: ServerIdentity, now: ServerIdentity) -> str | None:
    """Return what to log about leading on the server `now`, if the last term is of `stored`.

    What is in the log here was not lost: the note shows
    operators why receivers that had come further are about to halt.
    """
    old, new = stored.timeline, now.timeline
    if stored.system_identifier != now.system_identifier:
        return (
            f"led on another server than before (system identifier {now.system_identifier}, was "
            f"{stored.system_identifier}): what was committed there later than this copy is not "
            "here"
        )
    if new < old:
        return (
            f"led on an older timeline than before ({new}, was {old}): a server that was "
            "replaced leads again, and what was committed since is not here"
        )
    if new > old:
        return (
            f"led on a promoted server (timeline {new}, was {old}): what it had not "
            "replayed is not here"
        )
    return None
