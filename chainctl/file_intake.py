"""Feeds a file to a sequencer: each row once, whatever happened the last time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from chainctl.database import SQL, connected, database_id
from orderchain.batch import IntakeMark
from orderchain.errors import ChainMissing, InputError, OrderError
from orderchain.roles import SEQUENCER_WRITER
from sequencer.intake.file import Portion

if TYPE_CHECKING:
    from chainctl.output import ProgressBar
    from chainctl.settings import Settings
    from sequencer import Ack, Sequencer
    from sequencer.intake.file import FileIntake


class Remainder(NamedTuple):
    """What is left of a file after the rows that were taken before."""

    first: Portion
    """The next orders: read ahead, so that a bad row or an end is known before the take-over."""
    intake: FileIntake
    taken: IntakeMark | None
    """How far the file had been taken when it was looked up."""


class Fed:
    """What was added to the chain so far."""

    def __init__(self) -> None:
        self.orders = 0
        self.repeats = 0
        """Rows whose keys were in the chain before, with the same content: they add nothing."""
        self.first_id: int | None = None
        self.last_id: int | None = None
        self._head = 0

    def start(self, head: int) -> None:
        """Begin at the chain's head: what gets a place at or below it is a repeat."""
        self._head = head

    def add(self, acks: list[Ack]) -> None:
        """Count a committed batch. A repeat, even within the batch, has another order's place."""
        new = {ack.id for ack in acks if ack.id > self._head}
        self.repeats += len(acks) - len(new)
        if not new:
            return
        self.orders += len(new)
        self._head = self.last_id = max(new)
        if self.first_id is None:
            self.first_id = min(new)


async def taken_before(settings: Settings, chain_id: int, source: str) -> IntakeMark | None:
    """Return how far `source` was taken into the chain, None if never.

    Call it before the chain is taken over: a file that will be refused must not end another
    leader's term. Raises ChainMissing, SchemaError, ConnectError.
    """
    async with connected(
        settings.database_dsn(), settings.connect_seconds, SEQUENCER_WRITER
    ) as connection:
        await database_id(connection)
        if await connection.fetchrow(SQL["chain"], chain_id) is None:
            raise ChainMissing(chain_id)
        row = await connection.fetchrow(SQL["intake"], chain_id, source)
    if row is None:
        return None
    return IntakeMark(source=source, position=row["position"], digest=row["digest"])


async def pass_over(intake: FileIntake, taken: IntakeMark, bar: ProgressBar) -> None:
    """Read past what was taken before. Raises InputError when that content has changed."""
    for _ in intake.pass_over(taken):
        bar.move_to(intake.file_position, "known rows")
        await asyncio.sleep(0)


async def feed(
    sequencer: Sequencer, remainder: Remainder, batch_rows: int, fed: Fed, bar: ProgressBar
) -> None:
    """Add the rest of the file to the chain, and count it in `fed`.

    Where a row cannot be read, or its key is refused, the rows before it are committed, none after
    it, and InputError is raised. So a batch is handed over only when the one before it is in the
    chain: after a refused one it would move the file's mark past rows that were not taken. The next
    one is read and encoded meanwhile.
    """
    portion: Portion | InputError | None = remainder.first
    while isinstance(portion, Portion):
        commit = asyncio.create_task(_submit(sequencer, portion, fed))
        try:
            # The commit must have begun before the next portion is read: reading blocks.
            await asyncio.sleep(0)
            upcoming = _read(remainder.intake, batch_rows)
        finally:
            await commit
        bar.move_to(remainder.intake.file_position, f"id {fed.last_id}")
        portion = upcoming
    if portion is not None:
        raise portion


async def _submit(sequencer: Sequencer, portion: Portion, fed: Fed) -> None:
    """Commit a portion. Raises InputError for an order that is refused, once those before it are
    committed."""
    try:
        fed.add(await sequencer.submit_many(portion.orders, intake=portion.mark))
    except OrderError as error:
        await _submit_up_to_bad(sequencer, portion, error, fed)
        raise


async def _submit_up_to_bad(
    sequencer: Sequencer, portion: Portion, refusal: OrderError, fed: Fed
) -> None:
    """Commit the orders before the one that is refused, and raise InputError with its line.

    The refusal names a key, which several orders may have: each of them is tried alone.
    """
    start = 0
    for index, order in enumerate(portion.orders):
        if order.key != refusal.value:
            continue
        if start < index:
            before = portion.part(start, index)
            fed.add(await sequencer.submit_many(before.orders, intake=before.mark))
        alone = portion.part(index, index + 1)
        try:
            fed.add(await sequencer.submit_many(alone.orders, intake=alone.mark))
        except OrderError as error:
            raise InputError(
                error.field, error.value, error.expected, portion.line_of(index)
            ) from error
        start = index + 1


def _read(intake: FileIntake, limit: int) -> Portion | InputError | None:
    """Return the next portion, or why there is none; None at the end of the file."""
    try:
        return intake.read(limit)
    except InputError as error:
        return error
