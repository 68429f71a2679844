"""Feeds a file to a sequencer: each row once, whatever happened the last time."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from chainctl.database import SQL, connected, database_id
from chainctl.intake.file import Portion
from orderchain.batch import IntakeMark
from orderchain.errors import ChainMissing, InputError

if TYPE_CHECKING:
    from chainctl.intake.file import FileIntake
    from chainctl.output import ProgressBar
    from chainctl.settings import Settings
    from sequencer import Ack, Sequencer

IN_FLIGHT: Final = 3
"""Batches handed to the sequencer and not committed yet: one commits, one is encoded behind it, one
waits, so that it never waits for the file. More would only hold memory."""


class Remainder(NamedTuple):
    """What is left of a file behind the rows that were taken before."""

    first: Portion
    """The next orders: read ahead, so that a bad row or an end is known before the take-over."""
    intake: FileIntake
    taken: IntakeMark | None
    """How far the file had been taken when it was looked up."""


class Fed:
    """What was added to the chain so far."""

    def __init__(self) -> None:
        self.orders = 0
        self.first_id: int | None = None
        self.last_id: int | None = None

    def add(self, acks: list[Ack]) -> None:
        """Count a committed batch."""
        self.orders += len(acks)
        if self.first_id is None:
            self.first_id = acks[0].id
        self.last_id = acks[-1].id


async def taken_before(settings: Settings, chain_id: int, source: str) -> IntakeMark | None:
    """Return how far `source` was taken into the chain, None if never.

    Asked before the chain is taken over: a file that will be refused must not end another leader's
    term. Raises ChainMissing, SchemaError, ConnectError.
    """
    async with connected(settings.database_dsn(), settings.connect_seconds) as connection:
        await database_id(connection)
        if await connection.fetchrow(SQL["chain"], chain_id) is None:
            raise ChainMissing(chain_id)
        row = await connection.fetchrow(SQL["intake"], chain_id, source)
    if row is None:
        return None
    return IntakeMark(source=source, position=row["position"], digest=row["digest"])


async def pass_over(intake: FileIntake, taken: IntakeMark, bar: ProgressBar) -> None:
    """Read over what was taken before. Raises InputError when it is not what it was."""
    for _ in intake.pass_over(taken):
        bar.move_to(intake.file_position, "known rows")
        await asyncio.sleep(0)


async def feed(
    sequencer: Sequencer, remainder: Remainder, batch_rows: int, fed: Fed, bar: ProgressBar
) -> None:
    """Add the rest of the file to the chain, and count it in `fed`.

    Where a row cannot be read, the rows before it are committed before the InputError is raised.
    """
    in_flight: deque[asyncio.Task[list[Ack]]] = deque()
    intake = remainder.intake
    portion: Portion | InputError | None = remainder.first
    try:
        while isinstance(portion, Portion):
            in_flight.append(
                asyncio.create_task(sequencer.submit_many(portion.orders, intake=portion.mark))
            )
            # The task must reach the sequencer before the next portion is read: reading blocks.
            await asyncio.sleep(0)
            if len(in_flight) >= IN_FLIGHT:
                fed.add(await in_flight.popleft())
                bar.move_to(intake.file_position, f"id {fed.last_id}")
            portion = _read(intake, batch_rows)
        while in_flight:
            fed.add(await in_flight.popleft())
    finally:
        # After a failure, or Ctrl-C: what was handed over may be committed all the same.
        for outcome in await asyncio.gather(*in_flight, return_exceptions=True):
            if isinstance(outcome, list):
                fed.add(outcome)
    if portion is not None:
        raise portion


def _read(intake: FileIntake, limit: int) -> Portion | InputError | None:
    """Return the next portion, or why there is none; None at the end of the file."""
    try:
        return intake.read(limit)
    except InputError as error:
        return error
