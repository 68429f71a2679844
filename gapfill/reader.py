"""Reads standings and missing rows of one chain: the database's side of a receiver."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import structs

from chain_kernel.clients.database_config import DatabaseConfig
from chain_kernel.clients.session import ClosedAtExit, SessionConfig
from chain_kernel.clients.shared_session import SharedSession
from chain_kernel.errors import (
    ChainMissing,
    ForkFound,
    NotYetReadable,
    PageDamaged,
    RowsArchived,
    RowsMissing,
    SealMismatch,
)
from chain_kernel.model import (
    ROWS_AHEAD_BATCHES,
    TERMS_MAX,
    ChainHead,
    ChainPosition,
    Event,
    FrameTerm,
    Mark,
    Run,
    first_break,
    is_linked,
)
from chain_kernel.seal import PageImage, genesis_seal, is_linked_page, page_events
from chain_kernel.sql import GAP_READER, load_sql, require_version
from gapfill.batch_proof import FIRST_BATCHES, BatchMarks, CutPage, StoredBatch

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from gapfill.batch_proof import ReadPage
    from gapfill.config import GapReaderConfig

_SQL: Final = load_sql("gapfill", "queries.sql")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PRIMARY: Final = "primary"

FIRST_PAGES: Final = 16
"""Stored pages that a first read looks at. It needs few of them if they are full, and the server
reads the heads of all of them before it knows that."""
_GROWTH: Final = 4
"""Growth of the next read, if all pages were needed because they are small."""

_columns_of = itemgetter("ids", "pids", "keys", "times", "payloads")
_images_of = itemgetter("id_images", "pid_images", "key_images", "time_images", "payload_images")
_batches_of = itemgetter(
    "last_ids", "seals", "epochs", "first_ids", "row_counts", "committed_at_us"
)
"""In the order of `StoredBatch`."""


class GapReader(ClosedAtExit):
    """Implements GapSource of `chain_kernel.ports` over PostgreSQL.

    The role `gap_reader` is enough. One fill at a time; used from one event loop. It connects when
    something is read, and disconnects soon after; readers of one process share that
    connection.
    """

    def __init__(self, config: GapReaderConfig) -> None:
        self._config = config
        session = SessionConfig(
            database=DatabaseConfig.of(config.database),
            application_name="orderchain gap reader",
            role=GAP_READER,
            pooler="read through",
            is_of_one_chain=True,
            connect_seconds=config.connect_seconds,
            statement_seconds=config.statement_seconds,
            close_seconds=config.close_seconds,
            linger_seconds=config.linger_seconds,
            busy_seconds=config.busy_seconds,
        )
        # Whatever chain, and however much it reads at once: hundreds of chains of a process would
        # else hold as many of the role's few connections while their orders are notified.
        self._connection = SharedSession(
            session, structs.replace(config, chain_id=1, page_rows=1, page_bytes=1)
        )

    async def close(self) -> None:
        """Close; never raises, never waits beyond `close_seconds`."""
        await self._connection.close()

    @property
    def chain_id(self) -> int:
        """The chain that it reads."""
        return self._config.chain_id

    # -- standing ------------------------------------------------------------------------------

    async def standing(self, at_id: int, batch_id: int | None = None) -> ChainPosition:
        """Return the chain's head and the mark after the row `at_id` (0: before the first row).

        With `batch_id` it also returns the seal after the batch that ends there. All are of one
        snapshot. Raises ChainMissing, SchemaError, ConnectError, RetryError; RowsArchived when the
        row or the batch is before the archive's boundary.
        """
        chain_id = self._config.chain_id
        values = (chain_id, at_id, batch_id, TERMS_MAX, ROWS_AHEAD_BATCHES)
        rows = await self._connection.fetch(_SQL["standing"], *values)
        require_version(rows[0] if rows else None)
        row = rows[0]
        if row["chain_id"] is None:
            raise ChainMissing(chain_id)
        mark = _mark_of(row, chain_id, at_id)
        if mark is None and at_id < (row["boundary_id"] or 0):
            raise RowsArchived(chain_id, at_id, row["boundary_id"])
        seal = genesis_seal(row["database_id"], chain_id) if batch_id == 0 else row["asked_seal"]
        if seal is None and batch_id is not None and batch_id < (row["boundary_id"] or 0):
            raise RowsArchived(chain_id, batch_id, row["boundary_id"])
        columns = (row[name] or () for name in ("term_epochs", "term_nonces", "term_frame_keys"))
        terms = zip(*columns, strict=True)
        return ChainPosition(
            head=ChainHead(
                chain_id=row["chain_id"],
                database_id=row["database_id"],
                epoch=row["epoch"],
                nonce=row["nonce"],
                last_id=row["last_id"],
                last_seal=row["last_seal"],
                published_id=row["published_id"],
                topic=row["topic"],
                partition=row["topic_partition"],
                is_published=row["is_published"],
            ),
            mark=mark,
            is_primary=not row["is_standby"],
            terms=tuple(FrameTerm(epoch=e, nonce=n, frame_key=key) for e, n, key in terms),
            batch_seal=seal,
            rows_ahead=row["rows_ahead"],
        )

    # -- places --------------------------------------------------------------------------------

    async def row_at_or_before(self, until_id: int) -> int:
        """Return a row's id."""
        rows = await self._connection.fetch(
            _SQL["row_at_or_before"], self._config.chain_id, until_id
        )
        return int(rows[0]["id"])

    async def row_before_time(self, time_us: int) -> int:
        """Return the last id of a batch.

        Commit times never fall along a chain, so a binary search over the ids finds it: some forty
        reads of one index entry each, whatever the length of the chain.
        """
        moment = _EPOCH + timedelta(microseconds=time_us)
        known = 0
        upper = (await self.standing(0)).head.last_id
        while known < upper:
            middle = (known + upper + 1) // 2
            batch = await self._connection.fetch(_SQL["batch_from"], self._config.chain_id, middle)
            if batch and batch[0]["last_id"] <= upper and batch[0]["committed_at"] < moment:
                known = batch[0]["last_id"]
            else:
                upper = middle - 1
        return known

    # -- runs ----------------------------------------------------------------------------------

    async def runs(
        self, after: Mark, until_id: int, *, from_primary: bool = False
    ) -> AsyncGenerator[Run, None]:
        """Yield linked runs after `after`, up to and including the row `until_id`.

        `after` is compared with the database first. While the caller works on a run the next pages
        are read, never more than one read ahead. Each batch whose rows are all read must give the
        stored seal; its rows wait for that, unless they are more than `page_rows` or `page_bytes`.
        Raises what `chain_kernel.ports.GapSource` names; what was yielded before that is linked and
        committed.
        """
        opening = await self._open(after, until_id)
        if from_primary and opening.source != _PRIMARY:
            raise NotYetReadable(after.id, until_id)
        chain_id, after = self._config.chain_id, opening.mark
        start_id = after.id
        marks = BatchMarks(self._connection, chain_id, after, opening.batches)
        pages_max = FIRST_PAGES
        held: list[ReadPage] = []
        read = _read(opening.pages) if opening.pages else self._read_ahead(after.id, until_id)
        try:
            while after.id < until_id:
                found = await read
                pages = held + found
                last_id = pages[-1].last_id if pages else after.id
                if len(found) >= pages_max:
                    pages_max *= _GROWTH
                # Before the next read begins: otherwise this run would wait for that one.
                await self._cover(marks, after.id, last_id)
                is_more = found and last_id < until_id
                held = self._held(after.id, pages, marks) if is_more else []
                read = self._read_ahead(last_id, until_id, pages_max, held)
                if not read.done():
                    await asyncio.sleep(0)  # sends the query; the rows are worked on meanwhile
                pages = pages[: len(pages) - len(held)]
                if held and not pages:
                    continue
                events = await _made_beside(read, pages)
                is_short = last_id < until_id and not found
                if is_short or len(_linked(after.id, pages)) < len(pages):
                    await _drop(read)
                    held, pages = [], await self._explain(after.id, until_id, marks)
                    events = _events_of(pages)
                    read = self._read_ahead(events[-1].id, until_id, pages_max)
                is_within = after.batch_last_id < start_id
                after, damaged = marks.take(pages, after)
                if damaged is not None:
                    events = [event for event in events if event.id <= after.id]
                if events:
                    yield Run(
                        chain_id=chain_id, events=events, end=after, source=opening.source,
                        begins_within=is_within,
                    )  # fmt: skip
                if damaged is not None:
                    # Its row may be read after the rows, and be the archive's boundary by then.
                    self._check_place(await self._place(), after.id, damaged.last_id)
                    raise damaged
        finally:
            await _drop(read)

    async def _cover(self, marks: BatchMarks, after_id: int, at_id: int) -> None:
        """Read the batches of rows that were read, which may be from another server by now.

        Raises RowsMissing; RowsArchived or NotYetReadable where they may be elsewhere.
        """
        try:
            return await marks.cover(at_id)
        except RowsMissing:
            place = await self._place()
        try:  # again, since the server may have been promoted, or have replayed them, in between
            await marks.cover(at_id)
        except RowsMissing:
            self._check_place(place, after_id, at_id)
            raise

    def _held(self, after_id: int, pages: list[ReadPage], marks: BatchMarks) -> list[ReadPage]:
        """Return the pages that wait for the end of their batch, to be handed on when it is proven.

        There are none where they are as much as one read may return: rows of a larger batch are
        handed on as they come, and the proof comes with the last of them.
        """
        end_id = marks.end_at_or_before(pages[-1].last_id)
        held = [page for page in pages if page.last_id > end_id]
        before = len(pages) - len(held)
        if (pages[before - 1].last_id if before else after_id) < end_id:
            held = held[1:]  # a page that goes on after its batch's end, which the proof refuses
        rows, size = _measure(held)
        return held if rows < self._config.page_rows and size < self._config.page_bytes else []

    async def _open(self, after: Mark, until_id: int) -> _FillStart:
        """Compare `after` with the database, and read what is next to it in the same round trip.

        A gap of a few rows is most often one lost frame, and its duration is that of its trips.
        """
        found = await self._ask(after.id, until_id, FIRST_PAGES, FIRST_BATCHES)
        first = found[0]
        is_known = first["batch_last_id"] is not None and first["is_there"]
        mark = _mark_of(first, self._config.chain_id, after.id) if is_known else None
        if mark is None or (mark.seal, mark.batch_last_id) != (after.seal, after.batch_last_id):
            return await self._check_start(after)
        source = _source_of(is_primary=not first["is_standby"])
        columns = (column or () for column in _batches_of(first))
        batches = list(map(StoredBatch, *columns))
        return _FillStart(mark, source, batches, _pages_of(found))

    async def _check_start(self, after: Mark) -> _FillStart:
        """Compare `after` with all that is known about the chain. Raises what is wrong with it."""
        standing = await self.standing(after.id, after.batch_last_id)
        mark, chain_id = standing.mark, self._config.chain_id
        if mark is not None and standing.batch_seal == after.seal:
            return _FillStart(mark, _source_of(is_primary=standing.is_primary))
        if not standing.is_primary:
            raise NotYetReadable(after.batch_last_id, after.id)
        if mark is None:
            raise ForkFound(chain_id, after.batch_last_id, after.id, None)
        raise SealMismatch(chain_id, after.batch_last_id, after.seal, standing.batch_seal or b"")

    def _read_ahead(
        self,
        after_id: int,
        until_id: int,
        pages_max: int = FIRST_PAGES,
        held: Sequence[ReadPage] = (),
    ) -> asyncio.Future[list[ReadPage]]:
        """Begin to read the pages after `after_id`; at the end of the range there are none.

        It reads as many fewer as are held, so that no more is in memory than without them.
        """
        if after_id < until_id:
            return asyncio.ensure_future(self._pages(after_id, until_id, pages_max, held))
        return _read([])

    async def _pages(
        self, after_id: int, until_id: int, pages_max: int, held: Sequence[ReadPage]
    ) -> list[ReadPage]:
        return _pages_of(await self._ask(after_id, until_id, pages_max, held=held))

    async def _ask(
        self,
        after_id: int,
        until_id: int,
        pages_max: int = FIRST_PAGES,
        batches: int = 0,
        held: Sequence[ReadPage] = (),
    ) -> list[Any]:
        """Return the rows of the statement `page`, at least one, in the order of the chain."""
        config = self._config
        rows, size = _measure(held)
        rows, size = config.page_rows - rows, config.page_bytes - size
        found = await self._connection.fetch(
            _SQL["page"],
            *(config.chain_id, after_id, until_id, rows, size, min(pages_max, rows), batches),
        )
        return found if len(found) == 1 else sorted(found, key=itemgetter("last_id"))

    async def _explain(self, after_id: int, until_id: int, marks: BatchMarks) -> list[ReadPage]:
        """Return the linked pages after `after_id` of whole batches, or raise what is wrong there.

        Rows of a batch that breaks off, or whose links break, are not among them: without its other
        rows nothing proves them. All are read again after the server has reported what it is: it
        may have been promoted, or have replayed them, in between.
        """
        place = await self._place()
        pages: list[ReadPage] = []
        while True:
            last_id = pages[-1].last_id if pages else after_id
            found = await self._ask(last_id, until_id, held=pages)
            more = _pages_of(found)
            pages += more
            linked = _linked(after_id, pages)
            if linked:
                last_id = linked[-1].last_id
                await self._cover(marks, after_id, last_id)
                held = self._held(after_id, linked, marks) if last_id < until_id else []
                if len(held) < len(linked):
                    return linked[: len(linked) - len(held)]
            if not more or len(linked) < len(pages):
                break
        self._check_place(place, after_id, until_id)
        raise self._broken(after_id, until_id, pages, found)

    def _broken(
        self, after_id: int, until_id: int, pages: Sequence[ReadPage], found: Sequence[Any]
    ) -> Exception:
        """Return what is wrong after `after_id`; the last of `pages` were `found`."""
        events = _events_of(pages)
        at = first_break(after_id, events)
        linked, rest = events[:at], [] if at is None else events[at:]
        lacking = next((row for row in found if row["lacks"] is not None), None)
        if lacking is not None and not rest:
            chain_id, names = self._config.chain_id, ("first_id", "last_id", "lacks")
            return PageDamaged(chain_id, *(lacking[name] for name in names))
        return self._missing(linked[-1].id if linked else after_id, until_id, rest)

    async def _place(self) -> Any:  # noqa: ANN401 - a record of asyncpg
        return (await self._connection.fetch(_SQL["place"], self._config.chain_id))[0]

    def _check_place(self, place: Any, after_id: int, until_id: int) -> None:  # noqa: ANN401 - as below
        """Raise RowsArchived or NotYetReadable where the rows after `after_id` may be elsewhere."""
        boundary_id = place["boundary_id"]
        if boundary_id is not None and boundary_id > after_id:
            # Also on a standby: what it has replayed of the archiving is never undone.
            raise RowsArchived(self._config.chain_id, after_id, boundary_id)
        if place["is_standby"]:
            raise NotYetReadable(after_id, until_id)

    def _missing(self, after_id: int, until_id: int, events: list[Event]) -> Exception:
        chain_id = self._config.chain_id
        if not events:
            return RowsMissing(chain_id, after_id, until_id)
        found = events[0]
        if after_id < found.pid < found.id:
            return RowsMissing(chain_id, after_id, found.pid)
        # The next row names an older parent than ours: two rows have one parent.
        return ForkFound(chain_id, found.pid, after_id, found.id)


class _FillStart(NamedTuple):
    """The beginning of a fill."""

    mark: Mark
    """The database's own mark of the place where the fill begins."""
    source: str
    batches: Sequence[StoredBatch] = ()
    """The next whole batches."""
    pages: Sequence[ReadPage] = ()
    """The first rows; empty where they still have to be read."""


def _read(pages: Sequence[ReadPage]) -> asyncio.Future[list[ReadPage]]:
    """Return a read that is done."""
    read: asyncio.Future[list[ReadPage]] = asyncio.get_running_loop().create_future()
    read.set_result(list(pages))
    return read


def _pages_of(found: Sequence[Any]) -> list[ReadPage]:
    """Return the pages that hold rows of the range, up to the first that lacks values."""
    pages: list[ReadPage] = []
    for row in takewhile(lambda row: row["lacks"] is None, found):
        if row["id_images"]:
            pages.append(PageImage.of_columns(*_images_of(row)))
        elif row["ids"]:
            # The driver is faster with a part of a page, which proves nothing.
            pages.append(CutPage(list(map(Event, *_columns_of(row)))))
    return pages


def _events_of(pages: Sequence[ReadPage]) -> list[Event]:
    events: list[Event] = []
    for page in pages:
        events += _rows_of(page)
    return events


async def _made_beside(
    read: asyncio.Future[list[ReadPage]], pages: Sequence[ReadPage]
) -> list[Event]:
    """Return the rows of `pages`, taking what has come of `read` after each page.

    A server whose answer is not read stops: a reading has more bytes than the buffers between.
    """
    events: list[Event] = []
    for page in pages:
        events += _rows_of(page)
        if not read.done():
            await asyncio.sleep(0)
    return events


def _rows_of(page: ReadPage) -> list[Event]:
    return page.events if isinstance(page, CutPage) else page_events(page)


def _linked(after_id: int, pages: Sequence[ReadPage]) -> list[ReadPage]:
    """Return the pages before the first that has a break in it, or does not follow the last one."""
    linked: list[ReadPage] = []
    for page in pages:
        if isinstance(page, CutPage):
            follows = is_linked(after_id, page.events)
        else:
            follows = is_linked_page(after_id, page)
        if not follows:
            break
        linked.append(page)
        after_id = page.last_id
    return linked


def _measure(pages: Sequence[ReadPage]) -> tuple[int, int]:
    return sum(page.row_count for page in pages), sum(page.size for page in pages)


def _source_of(*, is_primary: bool) -> str:
    return _PRIMARY if is_primary else "standby"


async def _drop(read: asyncio.Future[list[ReadPage]]) -> None:
    """End a read whose caller has stopped waiting, whatever its outcome."""
    if read.cancel():
        await asyncio.wait([read])
    if not read.cancelled():
        read.exception()  # retrieved, so that asyncio does not complain about it


def _mark_of(row: Any, chain_id: int, at_id: int) -> Mark | None:  # noqa: ANN401 - as above
    if row["batch_last_id"] is not None and row["is_there"]:
        return Mark(
            id=at_id,
            batch_last_id=row["batch_last_id"],
            seal=row["batch_seal"],
            epoch=row["batch_epoch"],
        )
    if at_id == 0:
        # The genesis row may be in the archive; what it holds can be computed.
        seal = genesis_seal(row["database_id"], chain_id)
        return Mark(id=0, batch_last_id=0, seal=seal, epoch=0)
    return None
