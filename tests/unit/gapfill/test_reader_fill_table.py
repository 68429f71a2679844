"""The table of docs/protocol.md, "A gap": what a fill finds, on a primary and on a standby."""

from collections.abc import Callable
from contextlib import aclosing
from random import Random
from typing import Any

import msgspec
import pytest

from chain_kernel.errors import (
    BatchDamaged,
    ForkFound,
    NotYetReadable,
    PageDamaged,
    RowsArchived,
    RowsMissing,
    SealMismatch,
)
from chain_kernel.model import Event, Run
from chain_kernel.seal import Columns
from chain_kernel.testing.virtual_loop import run_virtual
from gapfill import GapReader, GapReaderConfig
from tests.builders.chains import Chain, ids_of, make_chain
from tests.doubles.wire import Dial, Wire, WiredServer
from tests.simulation.gap_connection import MemoryReadConnection


class Connection(MemoryReadConnection):
    """A connection to a server whose archive may end somewhere."""

    boundary_id = 0
    lacking_id = 0
    """Last id of a page that lacks a value."""
    replayed_id = 2**63
    """Last id of the last batch that it has; there may be rows after it."""

    def _page(self, *values: Any) -> Any:
        rows = super()._page(*values)
        return [
            {**row, "first_id": 1, "lacks": "keys"} if row["last_id"] == self.lacking_id else row
            for row in rows
        ]

    def _standing(self, chain: Any, *values: Any) -> Any:
        (row,) = super()._standing(chain, *values)
        return [{**row, "boundary_id": self.boundary_id}]

    def _batches_after(self, chain: Any, known_id: int, limit: int) -> Any:
        return super()._batches_after(chain, known_id, limit) if known_id < self.replayed_id else []

    def _place(self, chain: Any) -> Any:
        return [{**super()._place(chain)[0], "boundary_id": self.boundary_id}]


class Server7:
    """A chain as one server shows it, and a fill behind the second row of the second batch."""

    def __init__(self, *, is_standby: bool) -> None:
        self.chain: Chain = make_chain([4, 6, 5])
        self.whole = self.chain.events
        self.after = self.chain.mark(self.chain.batches[1].events[1].id)
        self.until_id = self.chain.batches[2].last_id
        self.missing = [row_id for row_id in self.chain.ids if row_id > self.after.id]
        wire = Wire(WiredServer("database"), Dial(), Random(1))
        self.connection = Connection(
            lambda: (wire.server, lambda: self.chain), is_standby=is_standby, wire=wire
        )

    def fill(self) -> tuple[list[int], Exception | None]:
        """Return what was handed on, and what ended it."""
        runs: list[Run] = []

        async def work() -> Exception | None:
            reader = GapReader(
                GapReaderConfig(database="postgresql://none", chain_id=7, page_rows=3)
            )
            reader._connection = self.connection  # type: ignore[assignment]
            try:
                async with aclosing(reader.runs(self.after, self.until_id)) as found:
                    async for run in found:
                        runs.append(run)  # noqa: PERF401 - an error must leave what came before
            except Exception as error:  # noqa: BLE001 - it is what is asked for
                return error
            return None

        error = run_virtual(work())
        return ids_of(runs), error

    def replace(self, batch: int, events: list[Event]) -> None:
        self.chain.batches[batch] = msgspec.structs.replace(
            self.chain.batches[batch], columns=Columns.of(events)
        )

    def nothing(self) -> None:
        """All is well."""

    def end_early(self) -> None:
        self.replace(2, self.chain.batches[2].events[:2])

    def lose_a_row(self) -> None:
        events = self.chain.batches[2].events
        self.replace(2, [*events[:2], *events[3:]])

    def archive(self) -> None:
        self.connection.boundary_id = self.chain.batches[1].last_id
        self.replace(0, [])
        self.replace(1, [])

    def archive_behind_our_row(self) -> None:
        """As when the archive overtakes a fill that is under way."""
        self.archive()
        own = next(event for event in self.whole if event.id == self.after.id)
        self.replace(1, [own])

    def fork(self) -> None:
        """Another row names a parent that has a child already."""
        events = self.chain.batches[2].events
        older = msgspec.structs.replace(events[2], pid=events[0].id)
        self.replace(2, [*events[:2], older, *events[3:]])

    def lack_a_value(self) -> None:
        self.connection.lacking_id = self.until_id

    def change_a_value(self) -> None:
        events = list(self.chain.batches[2].events)
        events[2] = msgspec.structs.replace(events[2], payload=b"other")
        self.replace(2, events)

    def lose_our_row(self) -> None:
        events = self.chain.batches[1].events
        self.replace(1, [event for event in events if event.id != self.after.id])

    def take_another_seal(self) -> None:
        self.after = msgspec.structs.replace(self.after, seal=b"\7" * 32)


Found = type[Exception] | None

TABLE: list[tuple[Callable[[Server7], None], Found, Found, int]] = [
    # what is wrong, on a primary, on a standby, rows that are handed on before that
    (Server7.nothing, None, None, 9),
    (Server7.end_early, RowsMissing, NotYetReadable, 4),
    (Server7.lose_a_row, RowsMissing, NotYetReadable, 4),
    (Server7.fork, ForkFound, NotYetReadable, 4),
    (Server7.lack_a_value, PageDamaged, NotYetReadable, 4),
    (Server7.change_a_value, BatchDamaged, NotYetReadable, 4),
    (Server7.lose_our_row, ForkFound, NotYetReadable, 0),
    (Server7.take_another_seal, SealMismatch, NotYetReadable, 0),
]


@pytest.mark.parametrize("is_standby", [False, True], ids=["primary", "standby"])
@pytest.mark.parametrize(
    ("break_it", "on_primary", "on_standby", "rows"),
    TABLE,
    ids=[line[0].__name__ for line in TABLE],
)
def test_what_a_fill_finds_is_reported_by_its_kind_behind_a_linked_run(
    break_it: Callable[[Server7], None],
    on_primary: Found,
    on_standby: Found,
    rows: int,
    *,
    is_standby: bool,
) -> None:
    server = Server7(is_standby=is_standby)
    break_it(server)
    ids, error = server.fill()
    expected = on_standby if is_standby else on_primary
    assert type(error) is (expected or type(None)), repr(error)
    assert ids == server.missing[:rows]
    if isinstance(error, RowsMissing):
        # It names the hole, also where rows before that have no proof without it.
        hole = server.missing[5], server.missing[6]
        assert error.after_id == hole[0]
        assert error.until_id in {hole[1], server.until_id}


@pytest.mark.parametrize("is_standby", [False, True], ids=["primary", "standby"])
@pytest.mark.parametrize("archive", [Server7.archive, Server7.archive_behind_our_row])
def test_archived_rows_are_reported(
    archive: Callable[[Server7], None], *, is_standby: bool
) -> None:
    server = Server7(is_standby=is_standby)
    archive(server)
    ids, error = server.fill()
    assert isinstance(error, RowsArchived), repr(error)
    assert ids == []
    assert error.until_id == server.connection.boundary_id


@pytest.mark.parametrize(("is_standby", "expected"), [(False, RowsMissing), (True, NotYetReadable)])
def test_batches_that_the_server_lacks_whose_rows_were_read_are_reported_by_its_kind(
    expected: Found, *, is_standby: bool
) -> None:
    """As after a connection was lost, and another server reached that has replayed less."""
    server = Server7(is_standby=is_standby)
    server.chain = make_chain([1] * 20)
    server.after, server.until_id = server.chain.mark(0), server.chain.mark().id
    server.connection.replayed_id = server.chain.batches[15].last_id
    ids, error = server.fill()
    assert type(error) is expected, repr(error)
    assert ids == server.chain.ids[:15]
