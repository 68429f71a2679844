"""One commit on its way to PostgreSQL: in one round trip, whatever its size.

A leader that was replaced must not even copy its rows: the fence comes first, in either form.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from itertools import chain as flatten
from operator import attrgetter
from typing import TYPE_CHECKING, Final, TypeVar

from orderchain.clients.postgres import sqlstate_of
from orderchain.errors import Fenced, IntakeMoved, OrderchainError, UnknownOutcome
from orderchain.page_image import COLUMNS, COPY_HEADER, COPY_TRAILER
from orderchain.sql import load_sql
from sequencer.prepared import call

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from orderchain.batch import Batch, IntakeMark, Term
    from orderchain.clients.pipeline import Pipeline
    from orderchain.clients.postgres import Connection

_Result = TypeVar("_Result")

_SQL: Final = load_sql("sequencer", "queries.sql")
_EPOCH_START: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

_STATEMENT_ROWS_MAX: Final = 32
"""Rows that go in as values of one statement. Beyond it COPY's cheaper rows outweigh its start."""

_COPY: Final = f"COPY chain_page ({', '.join(COLUMNS)}) FROM STDIN (FORMAT binary)"

_FENCE_FAILED: Final = "22012"
"""division_by_zero: how `commit_batch` ends a transaction that did not pass the fence."""

_TAKEN: Final = "23505"
"""unique_violation: a parent that is taken."""

_MARK_MOVED: Final = "2201E"
"""invalid_argument_for_logarithm: how `save_mark` ends one whose intake is elsewhere."""

_row_of = attrgetter("id", "pid", "key", "event_time_ns", "payload")


class Commit:
    """A batch, and the intake marks that move with it."""

    def __init__(
        self, term: Term, batch: Batch, *, published_id: int, intake: Sequence[IntakeMark] = ()
    ) -> None:
        self._batch = batch
        self._intake = intake
        self._fence_values = (
            batch.chain_id,
            term.epoch,
            term.nonce,
            batch.pid,
            batch.first_id,
            batch.last_id,
            batch.row_count,
            batch.seal,
            _EPOCH_START + batch.committed_at_us * _MICROSECOND,
            published_id,
        )
        self._is_sent = False
        self._answer: asyncio.Future[None] | None = None

    @property
    def batch(self) -> Batch:
        """What is committed."""
        return self._batch

    @property
    def is_few_rows(self) -> bool:
        """Whether it is cheaper as one statement than by COPY."""
        return self._batch.row_count <= _STATEMENT_ROWS_MAX and not self._intake

    async def send(
        self,
        connection: Connection,
        pipeline: Pipeline,
        meanwhile: Callable[[], None] | None,
    ) -> None:
        """Commit, and call `meanwhile` while the server is at work.

        What it raises is made an outcome by `failure`.
        """
        if self.is_few_rows:
            await self._in_a_statement(connection, meanwhile)
        else:
            self.send_ahead(pipeline)
            await self.answered(meanwhile)

    def send_ahead(self, pipeline: Pipeline) -> None:
        """Send it behind whatever is under way; not for `is_few_rows`."""
        chain_id = self._batch.chain_id
        statements = [
            call("commit_batch", self._fence_values),
            *(call("save_mark", values) for values in mark_values(chain_id, self._intake)),
            *(call("save_reject", values) for values in reject_values(chain_id, self._intake)),
            _COPY,
        ]
        self._is_sent = True
        self._answer = pipeline.send(
            ";".join(statements),
            [
                COPY_HEADER,
                *flatten.from_iterable(page.copied(chain_id) for page in self._batch.pages),
                COPY_TRAILER,
            ],
        )

    async def answered(self, meanwhile: Callable[[], None] | None) -> None:
        """Wait for the end of what was sent; `meanwhile` is called before."""
        if self._answer is None:
            raise RuntimeError("not sent")
        if meanwhile is not None:
            await asyncio.sleep(0)  # the loop sends what was written at the end of its turn
            meanwhile()
        await self._answer

    async def _in_a_statement(
        self, connection: Connection, meanwhile: Callable[[], None] | None
    ) -> None:
        self._is_sent = True
        columns = map(list, zip(*map(_row_of, self._batch.events), strict=True))
        sending = connection.fetchval(_SQL["commit_page"], *self._fence_values, *columns)
        if self._batch.row_count == 1:
            passed = await sending  # done before there is time for a `meanwhile`
        else:
            passed = await _beside(sending, meanwhile)
        if passed is None:
            raise Fenced(self._batch.chain_id, self._batch.epoch)

    def failure(self, error: Exception) -> Exception | None:
        """Return what to raise for `error`: which of the three outcomes it is.

        None where it is none of the commit's own: it was not done, for a reason of the database's.
        """
        batch = self._batch
        if isinstance(error, OrderchainError):
            return error
        state = sqlstate_of(error)
        # Once the transaction was sent, only the server's own refusal says that it did not happen;
        # a session that was ended (57) or a connection that broke (08) says nothing.
        if self._is_sent and state[:2] in {"", "08", "57"}:
            return UnknownOutcome(batch.chain_id, batch.epoch, batch.first_id, batch.last_id)
        # A parent that is taken asks the same question as the fence: who leads?
        if state in {_FENCE_FAILED, _TAKEN}:
            return Fenced(batch.chain_id, batch.epoch)
        return intake_refusal(error, self._intake)


def intake_refusal(error: Exception, intake: Iterable[IntakeMark]) -> IntakeMoved | None:
    """Return IntakeMoved where `error` tells that a mark of `intake` does not follow the stored.

    No leader stores a mark that it does not know to follow: somebody else wrote to the table.
    """
    if sqlstate_of(error) != _MARK_MOVED:
        return None
    firsts = {mark.source: mark.previous for mark in reversed(list(intake))}
    return IntakeMoved(", ".join(firsts), next(iter(firsts.values()), None))


def mark_values(chain_id: int, intake: Iterable[IntakeMark]) -> list[tuple[object, ...]]:
    """Return the values of `save_mark`, one row per source: from before its first mark, which the
    others follow, to its last.
    """
    marks = list(intake)
    firsts = {mark.source: mark.previous for mark in reversed(marks)}
    lasts = {mark.source: mark for mark in marks}.values()
    return [
        (chain_id, mark.source, mark.position, mark.digest, firsts[mark.source]) for mark in lasts
    ]


def reject_values(chain_id: int, intake: Iterable[IntakeMark]) -> list[tuple[object, ...]]:
    """Return the values of `save_reject`: what was refused on the way."""
    return [
        (chain_id, mark.source, reject.position, reject.key, reject.reason)
        for mark in intake
        for reject in mark.rejects
    ]


async def _beside(
    sending: Coroutine[object, object, _Result], meanwhile: Callable[[], None] | None
) -> _Result:
    """Return the result of `sending`, having called `meanwhile` once it was on its way."""
    if meanwhile is None:
        return await sending
    task = asyncio.ensure_future(sending)
    try:
        await asyncio.sleep(0)  # the loop sends what was written at the end of its turn
        meanwhile()
        return await task
    finally:
        task.cancel()
