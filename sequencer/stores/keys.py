"""The pages of keys in PostgreSQL, on a connection of their own: no look-up waits for a commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import astuple

from chain_kernel.errors import RetryError
from chain_kernel.model import ClientNumber, Event, KeyPage, Term
from chain_kernel.sql import load_sql
from sequencer.stores.session import SideSessions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chain_kernel.clients.postgres import Record
    from sequencer.config import SequencerConfig


_SQL: Final = load_sql("sequencer", "queries.sql")


class PostgresKeyStore:
    """Implements `chain_kernel.ports.KeyStore` over PostgreSQL."""

    def __init__(self, config: SequencerConfig, shared: SideSessions | None = None) -> None:
        """`shared`: the sessions of several chains, which somebody else closes."""
        self._is_shared = shared is not None
        self._sessions = shared or SideSessions(config, "keys")

    async def rows(self, term: Term, ids: Sequence[int]) -> list[Event]:
        """Return rows by id."""
        return [Event(*row) for row in await self._fetch(term, "rows_by_id", list(ids))]

    async def outline(self, term: Term) -> list[tuple[int, int, int]]:
        """Return which pages there are."""
        return [(row[0], row[1], row[2]) for row in await self._fetch(term, "key_outline")]

    async def page(self, term: Term, after_id: int) -> KeyPage:
        """Return one page."""
        rows = await self._fetch(term, "key_page", after_id)
        if not rows:
            raise RetryError(f"chain {term.chain_id}: the page of keys after {after_id} is gone")
        return KeyPage(**rows[0])

    async def clients(self, term: Term) -> list[ClientNumber]:
        """Return all clients."""
        return [ClientNumber(*row) for row in await self._fetch(term, "clients")]

    async def keys(
        self, term: Term, after_id: int, until_id: int, at_most: int
    ) -> list[tuple[int, str]]:
        """Return the next keys."""
        rows = await self._fetch(term, "keys_after", after_id, until_id, at_most)
        return [(row[0], row[1]) for row in rows]

    async def archived_until(self, term: Term) -> int:
        """Return the archive's end."""
        return int((await self._fetch(term, "archived_until"))[0][0])

    async def save(self, term: Term, page: KeyPage, clients: Sequence[ClientNumber]) -> None:
        """Store a page with its clients."""
        held = (term.epoch, term.nonce)
        columns = zip(*map(astuple, clients), strict=True) if clients else ((),) * 5
        pages, _ = await self._sessions.write(
            term,
            (_SQL["save_key_page"], (*held, page.after_id, page.until_id, page.spans, page.hashes)),
            (_SQL["save_clients"], (*held, *map(list, columns))),
        )
        if not pages:
            raise RetryError(f"chain {term.chain_id}: epoch {term.epoch} has ended")

    async def forget(self, term: Term, until_id: int) -> None:
        """Drop old pages."""
        await self._fetch(term, "forget_key_pages", until_id, term.epoch, term.nonce)

    async def close(self) -> None:
        """Close the connections."""
        if not self._is_shared:
            await self._sessions.close()

    async def _fetch(self, term: Term, name: str, *values: object) -> list[Record]:
        return await self._sessions.fetch(term, _SQL[name], *values)
