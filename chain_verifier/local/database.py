"""The chain in PostgreSQL, read page by page in the order of ids over one connection."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from chain_verifier.frame_reading import FrameKeys
from chain_verifier.local.table import PAGE_ROWS, Row
from chain_verifier.server import session_config
from chain_verifier.truth import DatabaseHead, Truth
from orderchain.clients.session import Session
from orderchain.errors import ChainMissing, OrderchainError, SchemaError, SourceBroken
from orderchain.reasons import reason_of
from orderchain.roles import AUDITOR
from orderchain.schema import SCHEMA_VERSION
from orderchain.sql import load_sql

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from chain_verifier.config import DatabaseSource

_SQL: Final = load_sql("chain_verifier.local", "database.sql")

_ID_MIN: Final = -(2**63)


class DatabaseTable(Truth):
    """The rows of one chain up to the last one there was when the head was read.

    To open it reads the head, and raises ChainMissing, SchemaError or ConnectError. Each page is a
    statement of its own, so that no long snapshot slows the sequencer; rows below the head no
    longer change. `close` ends the connection.
    """

    has_positions: Final = False

    def __init__(self, source: DatabaseSource, chain_id: int) -> None:
        self.name = source.name
        self._chain_id = chain_id
        self._session = Session(session_config(source.database, AUDITOR))
        self._runner = asyncio.Runner()
        try:
            self._read_head()
        except BaseException:
            self.close()
            raise

    @contextmanager
    def _as_broken(self) -> Iterator[None]:
        try:
            yield
        except OrderchainError as error:
            raise SourceBroken(self.name, reason_of(error)) from error

    def _fetch(self, statement: str, *values: object) -> list[Any]:
        return self._runner.run(self._session.fetch(_SQL[statement], *values))

    def _read_head(self) -> None:
        versions = [row["version"] for row in self._fetch("version")]
        if versions != [SCHEMA_VERSION]:
            raise SchemaError("schema", f"version {versions}", f"version {SCHEMA_VERSION}")
        heads = self._fetch("head", self._chain_id)
        if not heads:
            raise ChainMissing(self._chain_id)
        self.head = DatabaseHead(**heads[0])

    def head_now(self) -> int:
        """Read the head once more. Raises SourceBroken."""
        with self._as_broken():
            found: int = self._fetch("head", self._chain_id)[0]["last_id"]
            return found

    def skips(self) -> list[tuple[int, int]]:
        """Return the ranges (after, until] that were never published. Raises SourceBroken."""
        with self._as_broken():
            return [tuple(row) for row in self._fetch("skips", self._chain_id)]

    def frame_keys(self) -> FrameKeys:
        """Return the keys of all terms that there are by now. Raises SourceBroken."""
        with self._as_broken():
            return FrameKeys({row[0]: row[1] for row in self._fetch("terms", self._chain_id)})

    def seal_at(self, last_id: int) -> bytes | None:
        """Return the seal after the batch that ends with `last_id`; None if none does."""
        with self._as_broken():
            found = self._fetch("seal_at", self._chain_id, last_id)
        return found[0]["seal"] if found else None

    def batches_at(self, ids: Sequence[int]) -> dict[int, Any]:
        """Return, for each of `ids`, the batch that ends there or before and the one behind it.

        As of now: what is committed while a topic is read counts too. Raises SourceBroken.
        """
        with self._as_broken():
            found = self._fetch("batches_at", self._chain_id, list(set(ids)))
        return {row["at_id"]: row for row in found}

    def batches(self) -> Iterator[dict[str, Any]]:
        """Yield the batches up to the head in the order of ids. Raises SourceBroken."""
        after_id = -1
        while True:
            with self._as_broken():
                found = self._fetch(
                    "batches", self._chain_id, after_id, self.head.last_id, PAGE_ROWS
                )
            yield from map(dict, found)
            if len(found) < PAGE_ROWS:
                return
            after_id = found[-1]["id"]

    def pages(
        self, ids: tuple[int, int] | None = None, *, content: bool = True
    ) -> Iterator[Sequence[Row]]:
        """Yield the rows within `ids`, up to the last one there was; without an id there is none.

        Where the primary key was taken away, an id may stand several times: rows of one id always
        come in one page.
        """
        after_id, until_id = _ID_MIN, self.last_row_id
        if ids is not None:
            after_id, until_id = ids[0] - 1, min(until_id, ids[1] - 1)
        limit = PAGE_ROWS
        while True:
            with self._as_broken():
                found = self._fetch(
                    "rows" if content else "ids", self._chain_id, after_id, until_id, limit
                )
            if len(found) < limit:
                yield [tuple(row) for row in found]
                return
            # The last id of a full page may stand again right behind it: it opens the next page.
            last_id = found[-1]["id"]
            page = [tuple(row) for row in found if row["id"] != last_id]
            if not page:
                limit *= 2
                continue
            yield page
            after_id, limit = page[-1][1], PAGE_ROWS

    def notes(self) -> tuple[str, ...]:
        """Return nothing: a table has no end that may be torn."""
        return ()

    def close(self) -> None:
        """Close the connection; nothing is under way any more."""
        self._runner.run(self._session.close())
        self._runner.close()
