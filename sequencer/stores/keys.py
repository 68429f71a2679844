"""The pages of keys in PostgreSQL, on a connection of their own: no look-up waits for a commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from chain_kernel.errors import RetryError
from chain_kernel.model import ClientNumber, Event, KeyPage
from chain_kernel.sql import load_sql
from sequencer.stores.session import side_session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chain_kernel.clients.postgres import Record
    from chain_kernel.clients.session import Session
    from sequencer.config import SequencerConfig


_SQL: Final = load_sql("sequencer", "queries.sql")


class PostgresKeyStore:
    """The pages of keys in the database; see `chain_kernel.ports.KeyStore`."""

    def __init__(self, config: SequencerConfig, shared: Session | None = None) -> None:
        """`shared`: the session of several chains, which somebody else closes."""
        self._chain_id = config.chain_id
        self._is_shared = shared is not None
        self._session = shared or side_session(config, "keys")

    async def rows(self, ids: Sequence[int]) -> list[Event]:
        """Return rows by id; see `chain_kernel.ports.KeyStore.rows`."""
        return [Event(*row) for row in await self._fetch("rows_by_id", list(ids))]

    async def outline(self) -> list[tuple[int, int, int]]:
        """Return which pages there are; see `chain_kernel.ports.KeyStore.outline`."""
        return [(row[0], row[1], row[2]) for row in await self._fetch("key_outline")]

    async def page(self, after_id: int) -> KeyPage:
        """Return one page; see `chain_kernel.ports.KeyStore.page`."""
        rows = await self._fetch("key_page", after_id)
        if not rows:
            raise RetryError(f"chain {self._chain_id}: the page of keys after {after_id} is gone")
        return KeyPage(**rows[0])

    async def clients(self) -> list[ClientNumber]:
        """Return all clients; see `chain_kernel.ports.KeyStore.clients`."""
        return [ClientNumber(*row) for row in await self._fetch("clients")]

    async def keys(self, after_id: int, until_id: int, at_most: int) -> list[tuple[int, str]]:
        """Return the next keys; see `chain_kernel.ports.KeyStore.keys`."""
        rows = await self._fetch("keys_after", after_id, until_id, at_most)
        return [(row[0], row[1]) for row in rows]

    async def save(self, page: KeyPage, clients: Sequence[ClientNumber]) -> None:
        """Store a page with its clients; see `chain_kernel.ports.KeyStore.save`."""
        async with self._session.transaction() as connection:
            await connection.execute(
                _SQL["save_key_page"],
                self._chain_id,
                page.after_id,
                page.until_id,
                page.spans,
                page.hashes,
            )
            await connection.execute(
                _SQL["save_clients"],
                self._chain_id,
                [known.client for known in clients],
                [known.number for known in clients],
                [known.id for known in clients],
                [known.known_from for known in clients],
                [known.known_from_id for known in clients],
            )

    async def forget(self, until_id: int) -> None:
        """Drop old pages; see `chain_kernel.ports.KeyStore.forget`."""
        await self._fetch("forget_key_pages", until_id)

    async def close(self) -> None:
        """Close the connection; see `chain_kernel.ports.KeyStore.close`."""
        if not self._is_shared:
            await self._session.close()

    async def _fetch(self, name: str, *values: object) -> list[Record]:
        return await self._session.fetch(_SQL[name], self._chain_id, *values)
