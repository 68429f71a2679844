"""The connection of the real gap reader, over a chain in memory: it answers the reader's SQL."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from chain_kernel.errors import RetryError
from chain_kernel.seal import event_pages
from chain_kernel.sql import SCHEMA_VERSION, load_sql
from chain_kernel.testing.memory_receiver import head_of, mark_at, rows_ahead, rows_between, seal_at
from tests.doubles.wire import WireBroken

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chain_kernel.model import Event
    from chain_kernel.testing.memory_receiver import SeenChain
    from tests.doubles.wire import Wire, WiredServer

LIFE_SECONDS = 1.0
"""After so long a session is opened again: its server may have been replaced, and answer still."""

_NAMES = {text: name for name, text in load_sql("gapfill", "queries.sql").items()}

_COLUMNS = ("ids", "pids", "keys", "times", "payloads")
_IMAGES = ("id_images", "pid_images", "key_images", "time_images", "payload_images")
_BATCH_COLUMNS = ("last_ids", "seals", "epochs", "first_ids", "row_counts", "committed_at_us")


class MemoryReadConnection:
    """Stands in for the reader's `clients.session.Session`: one statement at a time.

    `connect` returns the server that a new session comes to, and how the chain is seen there.
    """

    def __init__(
        self,
        connect: Callable[[], tuple[WiredServer, Callable[[], SeenChain]]],
        *,
        is_standby: bool,
        wire: Wire,
    ) -> None:
        self._connect = connect
        self._see: Callable[[], SeenChain] | None = None
        self._boots = 0
        self._ends = 0.0
        self._is_standby = is_standby
        self._wire = wire
        self._turn = asyncio.Lock()

    async def fetch(self, statement: str, *values: Any) -> Sequence[Any]:
        # A statement that is not known here fails: then the simulation has to learn it.
        answer = getattr(self, f"_{_NAMES[statement]}")

        async with self._turn:
            wire, see = self._wire, self._see
            now = asyncio.get_running_loop().time()
            if see is None or self._boots != wire.server.boots or now > self._ends:
                wire.server, see = self._connect()
                self._see, self._boots, self._ends = see, wire.server.boots, now + LIFE_SECONDS

            async def work() -> Sequence[Any]:
                found: Sequence[Any] = answer(see(), *values[1:])
                return found

            try:
                return await wire.call(work)
            except WireBroken as error:
                self._see = None
                raise RetryError(f"the read failed: {error}") from error

    async def close(self) -> None:
        """Nothing is held."""

    def _standing(
        self, chain: SeenChain, at_id: int, batch_id: int | None, terms_max: int, batches_max: int
    ) -> Sequence[Any]:
        head, mark = head_of(chain), mark_at(chain, at_id)
        is_row = bool(rows_between(chain, at_id - 1, at_id, 1))
        terms = chain.terms[:terms_max]
        return [
            {
                "version": SCHEMA_VERSION,
                "upgrade_to": None,
                "database_id": head.database_id,
                "is_standby": self._is_standby,
                "chain_id": head.chain_id,
                "epoch": head.epoch,
                "nonce": head.nonce,
                "last_id": head.last_id,
                "last_seal": head.last_seal,
                "published_id": head.published_id,
                "topic": head.topic,
                "topic_partition": head.partition,
                "is_published": head.is_published,
                "batch_last_id": mark.batch_last_id,
                "batch_seal": mark.seal,
                "batch_epoch": mark.epoch,
                "is_there": is_row or mark.batch_last_id == at_id,
                "boundary_id": 0,
                "term_epochs": [term.epoch for term in terms],
                "term_nonces": [term.nonce for term in terms],
                "term_frame_keys": [term.frame_key for term in terms],
                "asked_seal": seal_at(chain, batch_id),
                "rows_ahead": rows_ahead(chain, at_id, batches_max),
            }
        ]

    def _page(
        self,
        chain: SeenChain,
        after_id: int,
        until_id: int,
        rows: int,
        bytes_: int,
        pages: int,
        batches: int,
    ) -> Sequence[Any]:
        # A batch is stored as one page here.
        found: list[dict[str, Any]] = []
        rows_before = bytes_before = 0
        for batch in chain.batches:
            events = [event for event in batch.events if after_id < event.id <= until_id]
            if not events:
                continue
            if found and (rows_before >= rows or bytes_before >= bytes_ or len(found) == pages):
                break
            columns = _columns(events, is_whole=events == batch.events)
            found.append(columns | {"last_id": batch.last_id, "lacks": None})
            rows_before += batch.last_id - batch.first_id + 1
            bytes_before += batch.size
        found = found or [dict.fromkeys(("ids", "id_images", "last_id", "lacks"))]
        if batches:
            ahead = self._batches_after(chain, after_id, batches)
            values = zip(*ahead, strict=True) if ahead else [None] * len(_BATCH_COLUMNS)
            found[0] |= self._standing(chain, after_id, None, 0, 0)[0] | {
                "last_id": found[0]["last_id"],
                **dict(zip(_BATCH_COLUMNS, values, strict=True)),
            }
        return found

    def _batches_after(self, chain: SeenChain, known_id: int, limit: int) -> Sequence[Any]:
        rows = [
            (b.last_id, b.seal, b.epoch, b.first_id, b.row_count, b.committed_at_us)
            for b in chain.batches
            if b.last_id > known_id
        ]
        return rows[:limit]

    def _place(self, chain: SeenChain) -> Sequence[Any]:
        return [{"is_standby": self._is_standby, "boundary_id": 0}]


def _columns(events: Sequence[Event], *, is_whole: bool) -> dict[str, Any]:
    if is_whole:
        images = (column for page in event_pages(events) for column in page.columns)
        return dict.fromkeys(_COLUMNS) | dict(zip(_IMAGES, images, strict=True))
    rows = ((e.id, e.pid, e.key, e.event_time_ns, e.payload) for e in events)
    columns = zip(*rows, strict=True)
    return dict.fromkeys(_IMAGES) | dict(zip(_COLUMNS, columns, strict=True))
