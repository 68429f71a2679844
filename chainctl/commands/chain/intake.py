"""Takes orders into a chain: the rows of a file, each once, or the records of a Kafka topic."""

from __future__ import annotations

import asyncio
import io
import os
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from msgspec import Struct

from chain_kernel.errors import ChainMissing, InputError, OrderError, SettingError, SteppedDown
from chain_kernel.model import IntakeMark
from chain_kernel.sql import SEQUENCER_WRITER
from chain_kernel.text import counted
from chainctl.database import SQL, connected_to, database_id
from chainctl.event_loop import report_ready
from chainctl.exits import under_way
from chainctl.monitor_server import Address, Watch, watched
from chainctl.output import Stopwatch, talk
from sequencer.intake.file import Portion

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chainctl.output import ProgressBar
    from chainctl.settings import Settings
    from sequencer import Ack, Sequencer, SequencerConfig, TopicIntake, TopicIntakeConfig
    from sequencer.intake.file import FileIntake

_T = TypeVar("_T")

_END: Final = object()
"""What an iterator returns at its end."""

# -- a file -------------------------------------------------------------------------------------


class Remainder(NamedTuple):
    """The rest of a file after the rows that were taken before."""

    first: Portion
    """The next orders: read ahead, so that a bad row or an end is known before the take-over."""
    intake: FileIntake
    taken: IntakeMark | None
    """How far the file had been taken when it was looked up."""


class FileIntakeCounts:
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

    def add(self, acks: Sequence[Ack]) -> None:
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
    async with connected_to(
        settings.database_dsn(), settings.connect_seconds, SEQUENCER_WRITER
    ) as connection:
        await database_id(connection)
        if await connection.fetchrow(SQL["chain"], chain_id) is None:
            raise ChainMissing(chain_id)
        row = await connection.fetchrow(SQL["intake"], chain_id, source)
    if row is None:
        return None
    return IntakeMark(source=source, position=row["position"], digest=row["digest"])


def standard_input() -> io.FileIO:
    """Return standard input, to be read and closed. Raises SettingError where there is none."""
    try:
        return io.FileIO(os.dup(sys.stdin.fileno()), "r")
    except (OSError, ValueError, AttributeError):
        raise SettingError("--input", "-", "an open standard input") from None


async def pass_over(intake: FileIntake, taken: IntakeMark, bar: ProgressBar) -> None:
    """Read past what was taken before. Raises InputError when that content has changed."""
    steps = intake.pass_over(taken)
    while await _read(intake, lambda: next(steps, _END)) is not _END:
        bar.move_to(intake.file_position, "known rows")
        await asyncio.sleep(0)


async def next_portion(intake: FileIntake, limit: int) -> Portion | None:
    """Return the next portion, None at the end of the file. Raises InputError."""
    return await _read(intake, lambda: intake.read(limit))


async def _read(intake: FileIntake, read: Callable[[], _T]) -> _T:
    """Return what `read` returns. A stream is read beside the loop: the lease must go on meanwhile.

    A thread that waits for another process cannot be stopped: nobody waits for it at the end.
    """
    if not intake.is_stream:
        return read()
    loop = asyncio.get_running_loop()
    found: asyncio.Future[_T] = loop.create_future()

    def settle(result: _T | None, error: BaseException | None) -> None:
        if found.done():  # cancelled
            return
        if error is None:
            found.set_result(result)  # type: ignore[arg-type] # there is one without an error
        else:
            found.set_exception(error)

    def work() -> None:
        result, failure = None, None
        try:
            result = read()
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            failure = error
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=work, name="chainctl input", daemon=True).start()
    return await found


async def feed(
    sequencer: Sequencer,
    remainder: Remainder,
    batch_rows: int,
    counts: FileIntakeCounts,
    bar: ProgressBar,
) -> None:
    """Add the rest of the file to the chain, and count it in `counts`.

    Where a row cannot be read, or its key is refused, the rows before it are committed, none after
    it, and InputError is raised. So a batch is handed over only when the one before it is in the
    chain: after a refused one it would move the file's mark past rows that were not taken. The next
    one is read and encoded meanwhile.
    """
    portion: Portion | InputError | None = remainder.first
    while isinstance(portion, Portion):
        commit = asyncio.create_task(_submit(sequencer, portion, counts))
        upcoming: Portion | InputError | None
        try:
            # The commit must have begun before the next portion is read: reading blocks.
            await asyncio.sleep(0)
            upcoming = await next_portion(remainder.intake, batch_rows)
        except InputError as error:
            upcoming = error
        finally:
            await commit
        bar.move_to(remainder.intake.file_position, f"id {counts.last_id}")
        portion = upcoming
    if portion is not None:
        raise portion


async def _submit(sequencer: Sequencer, portion: Portion, counts: FileIntakeCounts) -> None:
    """Commit a portion. Raises InputError for an order that is refused, once those before it are
    committed."""
    try:
        counts.add(await sequencer.submit_many(portion.orders, intake=portion.mark))
    except OrderError as error:
        await _submit_up_to_bad(sequencer, portion, error, counts)
        raise


async def _submit_up_to_bad(
    sequencer: Sequencer, portion: Portion, refusal: OrderError, counts: FileIntakeCounts
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
            counts.add(await sequencer.submit_many(before.orders, intake=before.mark))
        alone = portion.part(index, index + 1)
        try:
            counts.add(await sequencer.submit_many(alone.orders, intake=alone.mark))
        except OrderError as error:
            raise InputError(
                error.field, error.value, error.expected, portion.line_of(index)
            ) from error
        start = index + 1


# -- a topic ------------------------------------------------------------------------------------


class TopicIntakeReport(Struct, frozen=True, kw_only=True):
    """What `sequence` took from a topic, in one term as the leader."""

    chain: int
    topic: str
    epoch: int
    records: int
    """Records read and settled: orders, repeats and rejects."""
    rejects: int
    """Records that became no order; see the table chain_intake_reject."""
    orders: int
    """Orders added to the chain."""
    last_id: int
    """Head of the chain at the end."""
    seconds: float


class TopicIntakeRun:
    """An intake from a topic under way; `taken` returns what it did, even after a failure."""

    def __init__(self, config: SequencerConfig, topic: TopicIntakeConfig) -> None:
        self._config = config
        self._topic = topic
        self._sequencer: Sequencer | None = None
        self._intake: TopicIntake | None = None
        self._stopwatch = Stopwatch()

    async def run(self, bar: ProgressBar, http: Address | None = None) -> None:
        """Lead the chain and feed it, until cancelled, replaced, or asked to step down.

        Metrics and health are served at `http`, also while it waits as a standby.
        """
        async with watched(http) as watch:
            try:
                await self._run(bar, watch)
            except SteppedDown as error:
                talk(f"chainctl: {error}")

    async def _run(self, bar: ProgressBar, watch: Watch) -> None:
        from sequencer import TopicIntake, check_intake_topic, open_sequencer

        await check_intake_topic(self._topic)
        opened = open_sequencer(self._config)
        watch.add(opened)
        if self._config.standby:
            report_ready(f"waits for the leader of chain {self._config.chain_id}")
        async with under_way(opened) as sequencer:
            epoch = sequencer.stats().epoch
            talk(f"chainctl: leading chain {self._config.chain_id}, epoch {epoch}")
            report_ready(f"leads chain {self._config.chain_id}, epoch {epoch}")
            self._stopwatch = Stopwatch()
            self._sequencer = sequencer
            self._intake = TopicIntake(
                self._topic,
                sequencer,
                on_progress=lambda stats: bar.move_to(
                    stats.records, f"id {sequencer.stats().head_persisted}"
                ),
            )
            watch.add(self._intake)
            watch.report(self._progress)
            await self._intake.run()

    def _progress(self) -> str:
        """Return how far it is, in one line."""
        if self._sequencer is None or self._intake is None:
            return "not leading"
        stats = self._sequencer.stats()
        return (
            f"epoch {stats.epoch}, persisted up to {stats.head_persisted}, published up to "
            f"{stats.head_published}, {counted(stats.queue_rows, 'order')} in the queue, "
            f"{counted(self._intake.stats().records, 'record')} of {self._topic.topic} taken"
        )

    def taken(self) -> TopicIntakeReport | None:
        """Return what was done; None where it never led."""
        if self._sequencer is None or self._intake is None:
            return None
        intake, sequencer = self._intake.stats(), self._sequencer.stats()
        return TopicIntakeReport(
            chain=self._config.chain_id,
            topic=self._topic.topic,
            epoch=sequencer.epoch,
            records=intake.records,
            rejects=intake.rejects,
            orders=sequencer.orders,
            last_id=sequencer.head_persisted,
            seconds=self._stopwatch.seconds,
        )


def topic_config(settings: Settings, topic: str, start: str) -> TopicIntakeConfig:
    """Return the config of an intake from `topic`. Raises SettingError."""
    from sequencer import TopicIntakeConfig

    return TopicIntakeConfig(
        kafka=settings.kafka_config(),
        topic=topic,
        start="latest" if start == "latest" else "earliest",
        batch_rows=settings.batch_rows,
        connect_seconds=settings.connect_seconds,
    )
