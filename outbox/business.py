"""A transaction of the caller's, and what is known of its commit before anything is sent.

Sent is only what has surely committed. A commit may have failed without an error (PostgreSQL rolls
a broken transaction back when it is told to commit, and says so in a word that drivers pass over);
it may be in memory alone (`synchronous_commit = off`), or on the primary alone (a wait for the
standby that was cut off). What may be sent later is left to the sweep: the commit of its claim
waits for the disk and the standby, and so for everything that was committed before it.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orderchain.clients.durability import is_durable, watch_for_cancelled_waits
from orderchain.clients.postgres import sqlstate_of
from orderchain.errors import SettingError
from outbox.adding import store_messages
from outbox.durability import SYNCHRONOUS
from outbox.message import Message, draw_message_ids

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from uuid import UUID

    from orderchain.clients.postgres import Connection

_CONSTRAINT_CLASS: Final = "23"
_REFUSED_COMMITS: Final = frozenset({"40001", "40P01", "25P02"})
"""What else a server answers to a commit that says that there was none: could not serialize,
deadlock, a transaction that is broken."""


class BusinessTransaction:
    """A transaction of the caller's, whose messages are sent at once after its commit."""

    def __init__(
        self,
        connection: Connection,
        claim: UUID | None,
        check: Callable[[], None] = lambda: None,
        *,
        remembers: bool = False,
    ) -> None:
        """`check` raises where nothing may be added any more; `remembers`: see `given`."""
        self._connection = connection
        self._check = check
        self.claim = claim
        """By which they are claimed where they are stored; None: whoever finds them sends them."""
        self.messages: list[Message] = []
        self.given: list[Message] = []
        """Those that were refused, too, where it remembers them."""
        self.was_used = False
        self._remembers = remembers

    async def add(
        self,
        destination: str,
        payload: bytes,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> UUID:
        """Store one message, and return its id; as `outbox.add`.

        Raises PartEnded where whoever was to send it works no more.
        """
        (message_id,) = draw_message_ids(1)
        await self.add_many([Message(message_id, destination, payload, key, headers)])
        return message_id

    async def add_many(self, messages: Sequence[Message]) -> None:
        """Store all of `messages` or none, in one statement; as `outbox.add_many`."""
        self._check()
        if self._remembers:
            self.given += messages
        # Before it is known whether they are stored: cut off, the statement may break the
        # transaction, and its caller may go on to commit.
        self.was_used = True
        await store_messages(self._connection, messages, claim=self.claim)
        self.messages += messages


@dataclass
class Commit:
    """What is known of a commit."""

    matters: bool = True
    """Set it before the end of the block: whether anything follows from the commit."""
    is_durable: bool = False
    """Whether it is on disk: not where the session has `synchronous_commit` off."""
    has_begun: bool = False
    """Whether it was asked for: an error before that rolls the transaction back for certain."""
    was_cut: bool = False
    """Whether its wait for a synchronous standby was cut off."""

    @property
    def is_certain(self) -> bool:
        """Whether what follows from it may be made known."""
        return self.is_durable and not self.was_cut

    def is_rolled_back(self, error: BaseException) -> bool:
        """Whether `error` has rolled the transaction back, and not left open what became of it."""
        state = sqlstate_of(error)
        is_refused = state in _REFUSED_COMMITS or state.startswith(_CONSTRAINT_CLASS)
        return is_refused or not self.has_begun


@asynccontextmanager
async def watched_transaction(
    connection: Connection, commit: Commit | None = None
) -> AsyncIterator[Commit]:
    """Hold a transaction that commits at the end of the block, and say what that came to.

    One that an error has broken, which the block has caught, raises in place of its commit. Raises
    SettingError inside of another transaction, whose commit would be the one that counts. What is
    known of it is kept in the caller's `commit`, so that it can be asked after an error, too.
    """
    if connection.is_in_transaction():
        expected = "one outside of a transaction: what it adds is sent at the end of this one"
        raise SettingError("connection", "in a transaction", expected)
    commit = commit or Commit()
    with watch_for_cancelled_waits(connection) as was_cancelled:
        async with connection.transaction():
            yield commit
            if commit.matters:
                # As late as can be: what the block has set for its transaction counts.
                commit.is_durable = is_durable(await connection.fetchval(SYNCHRONOUS))
            commit.has_begun = True
        commit.was_cut = commit.matters and was_cancelled()
