"""Writes back what a chain lacks in its database, where the seals prove it.

The plan comes first: the whole chain is read, then the source, and nothing is written. Then the
source is read once more, and what it proves is written in one transaction with the act that records
it: both or neither, whatever crashes. What another process may do in between:

- The leader adds batches after the head. It is not disturbed: entries of batches are locked more
  weakly than the leader's own insert asks for, and pages below the head are ours alone.
- Retention, or a second repair, changes the same batches. Each entry, and the one before it, is
  held as the plan read it, and compared by its seal; one that was changed ends the repair with
  nothing done.
- A leader lives while rows are to be added after the head. Then its lease moves, and the repair is
  refused. One that is only paused wakes up fenced: the repair takes the chain over, by the same
  compare-and-set as every leader, so its commits and its own next take-over touch no row. It would
  not know the keys of the added rows. The next leader does.
"""

from __future__ import annotations

import asyncio
import io
import os
from contextlib import AsyncExitStack, ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from chain_kernel.clients.database_config import DatabaseConfig
from chain_kernel.errors import InputError, RetryError
from chain_kernel.frame import FRAME_KEY_BYTES, NONCE_BYTES
from chain_kernel.seal import COLUMNS, COPY_HEADER, COPY_TRAILER, Columns, column_pages
from chain_kernel.sql import OWNER, load_sql
from chain_kernel.text import counted
from chain_verifier.config import CONNECT_SECONDS, DatabaseSource, KeptSeal
from chain_verifier.repair.matching import SourceMatching
from chain_verifier.repair.offers import RepairSource, open_offers
from chain_verifier.repair.survey import BatchEnd, RepairPiece, Survey, left_range, stored_batch
from chain_verifier.server import connection_to
from chain_verifier.stored_chain import StoredChain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractAsyncContextManager

    from chain_kernel.clients.postgres import Connection
    from chain_verifier.checks.seals import ArchivedRow
    from chain_verifier.checks.topic_frames import FrameKeys
    from chain_verifier.repair.survey import Repair

SQL: Final = load_sql("chain_verifier.repair", "repair.sql")

_RANGES_NAMED: Final = 20
"""Ranges that the record of an act names; it counts all."""


class RepairRequest(Struct, frozen=True, kw_only=True):
    """Settings of a repair: what, from where, by whom, and why."""

    chain_id: int
    database: str | DatabaseConfig
    """With the owner's rights; for a dry run, those of an auditor are enough."""
    source: RepairSource
    kept_seals: tuple[KeptSeal, ...] = ()
    """Exported seals: each proves what the source has up to its batch."""
    actor: str
    reason: str
    is_dry_run: bool = False
    connect_seconds: float = CONNECT_SECONDS

    def connection(self) -> AbstractAsyncContextManager[Connection]:
        """Hold one connection with the owner's rights."""
        return connection_to(self.database, OWNER, self.connect_seconds)


class RepairPlan(Struct, frozen=True, kw_only=True):
    """The plan of a repair: what is written back, and what is left."""

    chain: int
    source: str
    batches: int
    rows: int
    """All that are written."""
    written: tuple[RepairPiece, ...]
    left: tuple[RepairPiece, ...]
    head: int
    head_after: int
    """The head once it is done; above `head` where rows are added after it."""
    moves_head: bool
    """True if the head is moved, or gets another seal: no leader may be alive then."""
    notes: tuple[str, ...]


class RepairOutcome(Struct, frozen=True, kw_only=True):
    """Results of a repair."""

    plan: RepairPlan
    act_id: int | None
    """The row of chain_act that records it; None where nothing was written."""


def repair_chain(
    request: RepairRequest, show: Callable[[RepairPlan], None], progress: Callable[[str], None]
) -> RepairOutcome:
    """Plan, `show` the plan, and unless it is a dry run write back what it has.

    Raises InputError or SourceBroken for a source that cannot be read, ChainMissing, SchemaError,
    ConnectError, and RetryError where the chain was changed meanwhile, or a leader lives that would
    have to be fenced (a dry run says that too).
    """
    with ExitStack() as opened:
        work = _RepairWork(request, opened, progress)
        plan = work.plan()
        show(plan)
        act_id = None
        if plan.batches and not request.is_dry_run:
            act_id = work.write(plan)
        elif plan.batches and plan.moves_head:
            with _working_on(request) as (run, connection):
                run(_require_no_leader(connection, request.chain_id))
        return RepairOutcome(plan=plan, act_id=act_id)


class _RepairWork:
    """One repair: what was found in the database, and the source to take it from."""

    def __init__(
        self, request: RepairRequest, opened: ExitStack, progress: Callable[[str], None]
    ) -> None:
        self._request = request
        self._progress = progress
        self._extents: dict[int, int] = {}
        """By partition, a row that is written there."""
        chain_id, source, kept = request.chain_id, request.source, request.kept_seals
        database = DatabaseSource(
            database=request.database, connect_seconds=request.connect_seconds
        )
        progress(f"opening {source.name}")
        # The source before the head: what a leader adds meanwhile is then not in the source. What
        # the source has after the head was lost.
        with closing(StoredChain(database, chain_id)) as table:
            head = table.head
            self._offers = open_offers(source, chain_id, head, opened, has_kept=bool(kept))
        progress("comparing the chain with its seals")
        # Entries and marks before the head, too: those of a living leader are then never after it.
        self._start, seals = asyncio.run(_read_known(request))
        with closing(StoredChain(database, chain_id)) as table:
            self._keys: FrameKeys = table.frame_keys()
            self._survey = self._look(table, seals | {each.id: each.seal for each in kept})
            self._head = replace(self._survey.at, id=table.head.last_id, seal=table.head.seal)

    def _look(self, table: StoredChain, kept: dict[int, bytes]) -> Survey:
        fields = {name: self._start[name] for name in ("seal", "epoch", "committed_at")}
        begin_id, last_id = self._start["last_id"], self._start["last_entry_id"]
        survey = Survey(BatchEnd(id=begin_id, **fields), kept)
        for row in table.sealed():
            if row["id"] > begin_id:
                survey.take(stored_batch(row))
        survey.end(table.head.last_id, table.head.seal)
        if last_id > table.head.last_id:
            why = "the database has entries of batches after its head"
            survey.left.append(left_range(table.head.last_id, last_id, why))
        return survey

    def plan(self) -> RepairPlan:
        """Read the source, and return what may be written back. Raises InputError, SourceBroken."""
        matching = self._matching()
        for each in self._repairs(matching):
            if each.rows is not None:
                last_id = each.entry.last_id
                self._extents[last_id // self._start["partition_ids"]] = last_id
        return self._plan_of(matching)

    def _plan_of(self, matching: SourceMatching) -> RepairPlan:
        was, now = self._head, matching.head
        return RepairPlan(
            chain=self._request.chain_id,
            source=self._request.source.name,
            batches=sum(piece.batches for piece in matching.written),
            rows=sum(piece.rows for piece in matching.written),
            written=tuple(matching.written),
            left=tuple(matching.left),
            head=was.id,
            head_after=now.id,
            moves_head=(was.id, was.seal) != (now.id, now.seal),
            notes=tuple(matching.notes),
        )

    def write(self, plan: RepairPlan) -> int:
        """Write what the plan has, and return the act that records it."""
        with _working_on(self._request) as (run, connection):
            self._progress("writing")
            run(_make_partitions(connection, self._request.chain_id, list(self._extents.values())))
            leader = None
            if plan.moves_head:
                leader = run(_require_no_leader(connection, self._request.chain_id))
            transaction = connection.transaction()
            run(transaction.start())
            run(connection.execute(SQL["as_owner"]))
            matching = self._matching()
            for each in self._repairs(matching):
                run(_write(connection, self._request.chain_id, each))
            if self._plan_of(matching).written != plan.written:
                text = f"{plan.source} has changed while it was read: repair once more"
                raise RetryError(text)
            if leader is not None:
                run(_move_head(connection, self._request, leader, self._head, matching.head))
            act_id: int = run(_record(connection, self._request, plan))
            run(transaction.commit())
        return act_id

    def _matching(self) -> SourceMatching:
        return SourceMatching(
            self._survey,
            self._head,
            self._request.chain_id,
            self._request.source.name,
            has_tail=self._start["last_entry_id"] <= self._head.id,
        )

    def _repairs(self, matching: SourceMatching) -> Iterator[Repair]:
        self._progress(f"reading {self._request.source.name}")
        return matching.repairs(self._offers(matching, self._keys))


async def _read_known(request: RepairRequest) -> tuple[Any, dict[int, bytes]]:
    """Return where the chain begins, and the seals that were verified by the rows they are of."""
    async with request.connection() as connection, connection.transaction():
        if not request.is_dry_run:
            await connection.execute(SQL["as_owner"])  # who may not act learns it before the work
        start = await connection.fetchrow(SQL["start"], request.chain_id)
        marks = await connection.fetch(SQL["marks"], request.chain_id)
    if start is None:
        field = f"genesis of chain {request.chain_id}"
        raise InputError(field, None, "the entry with which the chain begins: restore a backup")
    return start, {mark["until_id"]: mark["seal"] for mark in marks}


@contextmanager
def _working_on(
    request: RepairRequest,
) -> Iterator[tuple[Callable[[Any], Any], Connection]]:
    """Hold a connection for statements in between the reading of a source, which waits by itself.

    An error of the block ends the connection, and with it the transaction.
    """
    with asyncio.Runner() as runner:
        held = AsyncExitStack()
        connection = runner.run(held.enter_async_context(request.connection()))
        try:
            yield runner.run, connection
        except BaseException as error:
            runner.run(held.__aexit__(type(error), error, error.__traceback__))
            raise
        runner.run(held.aclose())


async def _make_partitions(connection: Connection, chain_id: int, ids: Sequence[int]) -> None:
    """Make the partitions that are not there, each in a transaction of its own.

    A leader that needs another partition meanwhile waits for the lock only as long.
    """
    missing = await connection.fetch(SQL["partitions"], chain_id, list(ids))
    for row in missing:
        if row["is_detached"]:
            expected = "a partition of chain_page: attach it, or rename it"
            raise InputError(f"table {row['name']}", "detached", expected)
    for row in missing:
        await connection.execute(SQL["extend"], chain_id, row["id"])


async def _require_no_leader(connection: Connection, chain_id: int) -> Any:  # noqa: ANN401
    """Return who led last; raise RetryError if that process shows that it is alive.

    As a standby does: its counter must not move for the time of its lease, on our own clock.
    """
    seen = await connection.fetchrow(SQL["leader"], chain_id)
    if seen["released"]:
        return seen
    await asyncio.sleep(seen["lease_seconds"])
    now = await connection.fetchrow(SQL["leader"], chain_id)
    if (now["counter"], now["epoch"]) != (seen["counter"], seen["epoch"]) and not now["released"]:
        raise RetryError(
            f"chain {chain_id} is led by {now['owner']}, which is alive: rows can be added after "
            f"its head once it has ended (chainctl step-down --chain {chain_id} --reason ...)"
        )
    return now


async def _write(connection: Connection, chain_id: int, repair: Repair) -> None:
    entry = repair.entry
    fields = (
        entry.first_id, entry.last_id, entry.prev_last_id, entry.row_count, entry.epoch, entry.seal,
        entry.committed_at,
    )  # fmt: skip
    await _hold(connection, chain_id, repair.before.id, repair.before.seal)
    if repair.was is None:
        await connection.execute(SQL["add_entry"], chain_id, *fields)
    else:
        await _hold(connection, chain_id, repair.was.last_id, repair.was.seal)
        if repair.was != entry:
            await connection.execute(SQL["change_entry"], chain_id, *fields)
    if repair.rows is not None:
        await connection.execute(SQL["remove_pages"], chain_id, entry.prev_last_id, entry.last_id)
        await _copy(connection, chain_id, repair.rows)


async def _hold(connection: Connection, chain_id: int, last_id: int, seal: bytes) -> None:
    if await connection.fetchval(SQL["hold"], chain_id, last_id, seal) is None:
        raise RetryError(
            f"chain {chain_id}: the batch that ends at {last_id} was changed meanwhile: nothing "
            "was written, repair once more"
        )


async def _copy(connection: Connection, chain_id: int, rows: Sequence[ArchivedRow]) -> None:
    """Store the rows in pages, as a sequencer does."""
    columns = Columns(*zip(*rows, strict=True))
    pages = column_pages(columns)
    pieces = [COPY_HEADER, *(piece for page in pages for piece in page.copied(chain_id))]
    await connection.copy_to_table(
        "chain_page",
        schema_name="public",
        columns=COLUMNS,
        format="binary",
        source=io.BytesIO(b"".join([*pieces, COPY_TRAILER])),
    )


async def _move_head(
    connection: Connection,
    request: RepairRequest,
    leader: Any,  # noqa: ANN401 - a record of asyncpg
    was: BatchEnd,
    now: BatchEnd,
) -> None:
    chain_id, owner = request.chain_id, f"repair by {request.actor}"
    nonce = os.urandom(NONCE_BYTES)
    epoch = await connection.fetchval(
        SQL["move_head"],
        *(chain_id, leader["epoch"], leader["nonce"], was.id, was.seal),
        *(now.epoch, nonce, owner, now.id, now.seal),
    )
    freed = None
    if epoch is not None:
        freed = await connection.fetchval(SQL["free_lease"], chain_id, leader["counter"], epoch)
    if freed is None:
        raise RetryError(f"chain {chain_id}: another process has taken over: nothing was written")
    frame_key = os.urandom(FRAME_KEY_BYTES)
    await connection.execute(SQL["begin_term"], chain_id, epoch, nonce, frame_key, owner, now.id)


async def _record(connection: Connection, request: RepairRequest, plan: RepairPlan) -> int:
    pieces = plan.written[:_RANGES_NAMED]
    named = ", ".join(f"{one.what} after {one.after_id} up to {one.until_id}" for one in pieces)
    what = f"{counted(plan.batches, 'batch')}, {counted(plan.rows, 'row')} from {plan.source}"
    detail = f"{what}: {named}{', ...' if len(plan.written) > len(pieces) else ''}"
    if plan.moves_head:
        detail += f"; head {plan.head} -> {plan.head_after}"
    values = (request.chain_id, request.actor, request.reason, detail)
    act_id: int = await connection.fetchval(SQL["record_act"], *values)
    return act_id
