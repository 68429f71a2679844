"""A database with an archive behind it: who is asked for what, and in which order."""

import uuid
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any

import pytest

from chain_kernel.errors import InputError, RetryError, RowsArchived, RowsMissing
from chain_kernel.model import ChainHead, ChainPosition, Event, Mark, Run
from chain_verifier.archive.backed_source import ArchiveBackedSource

HEAD = 90
PAGE = 10


def mark(at_id: int) -> Mark:
    return Mark(id=at_id, batch_last_id=at_id, seal=at_id.to_bytes(32, "big"), epoch=1)


def run_of(after: int, until: int, source: str) -> Run:
    events = [Event(n, n - 1, "k", 0, b"") for n in range(after + 1, until + 1)]
    return Run(chain_id=1, events=events, end=mark(until), source=source)


class Database:
    """Holds the rows behind `boundary`; each reading may move it, as retention would."""

    chain_id = 1

    def __init__(self, boundary: int, *moves: int) -> None:
        self.boundary = boundary
        self.moves = list(moves)
        self.is_closed = False

    async def standing(self, at_id: int, batch_id: int | None = None) -> ChainPosition:
        if 0 < at_id < self.boundary:
            raise RowsArchived(1, at_id, self.boundary)
        head = ChainHead(
            chain_id=1, database_id=uuid.UUID(int=1), epoch=1, nonce=b"", last_id=HEAD,
            last_seal=bytes(32), published_id=HEAD, topic="t", partition=0, is_published=True,
        )  # fmt: skip
        return ChainPosition(head=head, mark=mark(at_id), is_primary=True)

    async def runs(
        self, after: Mark, until_id: int, *, from_primary: bool = False
    ) -> AsyncGenerator[Run, None]:
        at = after.id
        while at < until_id:
            if at < self.boundary:
                error = RowsArchived(1, at, self.boundary)
                if self.moves:
                    self.boundary = self.moves.pop(0)
                raise error
            end = min(at + PAGE, until_id)
            yield run_of(at, end, "primary")
            at = end

    async def row_at_or_before(self, until_id: int) -> int:
        return until_id if until_id >= self.boundary else 0

    async def row_before_time(self, time_us: int) -> int:
        return 0

    async def close(self) -> None:
        self.is_closed = True


class Archive:
    chain_id = 1

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    async def mark_at(self, at_id: int, boundary: ChainPosition) -> Mark | None:
        self.asked.append(("mark", at_id, boundary.mark and boundary.mark.id))
        return mark(at_id)

    async def runs(
        self, after: Mark, until_id: int, boundary: ChainPosition
    ) -> AsyncGenerator[Run, None]:
        self.asked.append(("runs", after.id, until_id, boundary.mark and boundary.mark.id))
        yield run_of(after.id, until_id, "archive")

    async def row_at_or_before(self, until_id: int) -> int:
        return until_id

    async def row_before_time(self, moment: datetime) -> int:
        assert moment == datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC)
        return 17


async def read(source: ArchiveBackedSource, after: int, until: int) -> list[tuple[int, str]]:
    return [(run.last_id, run.source) async for run in source.runs(mark(after), until)]


async def test_what_the_database_holds_never_touches_the_archive() -> None:
    archive = Archive()
    source = ArchiveBackedSource(Database(30), archive)
    assert (await source.standing(30)).mark == mark(30)
    assert await read(source, 30, 45) == [(40, "primary"), (45, "primary")]
    assert archive.asked == []


async def test_older_rows_come_from_the_archive_and_then_the_database_goes_on() -> None:
    archive = Archive()
    source = ArchiveBackedSource(Database(30), archive)
    standing = await source.standing(7)
    assert (standing.mark, standing.head.last_id) == (mark(7), HEAD)
    assert await read(source, 0, 45) == [(30, "archive"), (40, "primary"), (45, "primary")]
    assert archive.asked == [("mark", 7, 30), ("runs", 0, 30, 30)]


async def test_a_range_within_the_archive_ends_there() -> None:
    archive = Archive()
    assert await read(ArchiveBackedSource(Database(30), archive), 5, 20) == [(20, "archive")]
    assert archive.asked == [("runs", 5, 20, 30)]


async def test_a_boundary_that_rises_while_the_archive_is_read_is_followed() -> None:
    database, archive = Database(30), Archive()
    source = ArchiveBackedSource(database, archive)
    found = []
    async for run in source.runs(mark(0), 60):
        found.append((run.last_id, run.source))
        if run.last_id == 30:
            database.boundary = 50
    assert found == [(30, "archive"), (50, "archive"), (60, "primary")]


async def test_a_boundary_that_rises_between_two_questions_is_tried_again_later() -> None:
    with pytest.raises(RetryError, match="up to 50 by now"):
        await read(ArchiveBackedSource(Database(30, 50), Archive()), 0, 60)


async def test_what_the_archive_raises_comes_out_and_nothing_behind_it() -> None:
    class Broken(Archive):
        async def runs(
            self, after: Mark, until_id: int, boundary: ChainPosition
        ) -> AsyncGenerator[Run, None]:
            yield run_of(after.id, after.id + 1, "archive")
            raise InputError("archive", "broken", "whole")

    runs = ArchiveBackedSource(Database(30), Broken()).runs(mark(0), 60)
    assert (await anext(runs)).last_id == 1
    with pytest.raises(InputError):
        await anext(runs)


async def test_other_errors_of_the_database_are_not_for_the_archive() -> None:
    class Holed(Database):
        async def runs(
            self, after: Mark, until_id: int, *, from_primary: bool = False
        ) -> AsyncGenerator[Run, None]:
            raise RowsMissing(1, after.id, until_id)
            yield  # a generator all the same

    archive = Archive()
    with pytest.raises(RowsMissing):
        await read(ArchiveBackedSource(Holed(30), archive), 0, 60)
    assert archive.asked == []


async def test_places_are_asked_of_the_database_first() -> None:
    async with ArchiveBackedSource(Database(30), Archive()) as source:
        assert await source.row_at_or_before(40) == 40
        assert await source.row_at_or_before(12) == 12
        assert await source.row_at_or_before(0) == 0
        assert await source.row_before_time(5_000_000) == 17


async def test_the_database_is_closed() -> None:
    database = Database(30)
    async with ArchiveBackedSource(database, Archive()):
        pass
    assert database.is_closed
