"""The callback service: keeps confirms, reports them to senders, and asks for what is missing.

It has a store of its own in PostgreSQL, and reads the check topic and the confirm topics.
"""

from __future__ import annotations

import asyncio
import logging
from copy import deepcopy
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid4

from msgspec import Struct

from chain_kernel.clients.kafka import (
    AIOKafkaConsumer,
    UnreadableRecord,
    close_client,
    make_consumer,
    start_client,
    started,
)
from chain_kernel.clients.kafka_config import KafkaConfig
from chain_kernel.clients.kafka_errors import connecting
from chain_kernel.clock import SystemClock, time_of
from chain_kernel.errors import OrderchainError
from chain_kernel.monitoring import counter_field, metrics
from chain_kernel.sql import load_sql
from chain_kernel.text import SummedLog, counted, printable, reason_of
from outbox.callback.config import after_ask
from outbox.errors import BadRecord
from outbox.message import smallest_id
from outbox.parts import endless
from outbox.records import APPLIED, DUE_NS_MAX, decode_checks, decode_confirms
from outbox.roles import OUTBOX_CALLBACK
from outbox.sender.message_sender import TopicErrors
from outbox.session import OutboxSession, Tables, columns

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    from chain_kernel.clock import Clock
    from chain_kernel.monitoring import Sample
    from outbox.callback.calls import HttpSenderCalls
    from outbox.callback.config import CallbackConfig, Reply


_log = logging.getLogger(__name__)

_PARKED_MAX = timedelta(days=7)
_KEEP_SECONDS = 60.0

SQL: Final = load_sql("outbox", "sql/callback_queries.sql")

WAITING: Final = 0
CONFIRMED: Final = 1

_TRIM_ROWS: Final = 10_000
"""Rows that one statement forgets: it keeps no other one waiting for long."""

_TABLES: Final = Tables("callback", SQL["version"], OUTBOX_CALLBACK)

_FETCH_MS: Final = 200
_METADATA_MS: Final = 5_000
"""Longest time until a topic that is made later is found."""
_RECORDS_MAX: Final = 500
_CLOSE_SECONDS: Final = 5.0
_UNREAD: Final = -1


class ClaimedDelivery(Struct, frozen=True):
    """A delivery that was claimed."""

    message_id: UUID
    consumer: str
    ask_count: int
    proof: bytes | None
    """The proof of its confirm, if there is one."""


@dataclass
class CallbackStats:
    """Counters of one process; they only rise."""

    checks: int = counter_field("Messages that senders have asked to check.")
    confirms: int = counter_field("Confirms that were stored.")
    asked: int = counter_field("Deliveries about which senders were asked.")
    unanswered: int = counter_field(
        "Deliveries about which a sender was asked, and gave no answer."
    )
    returned: int = counter_field("Confirms that were returned.")
    forged: int = counter_field("Confirms that their senders did not believe.")
    returns: int = counter_field("Calls by which confirms were returned.")
    bad_records: Counter[str] = counter_field("Records that were dropped.", "reason")


METRICS: Final = metrics("orderchain_outbox_callback", CallbackStats)
"""The counters of a callback service."""


class CallbackService:
    """A callback service without Kafka: it stores records, asks senders, and returns confirms.

    Raises:
        RetryError: each method, while the store is away; call it again.
        SettingError: each method, in another event loop or thread than the one that opened it.
    """

    def __init__(
        self, config: CallbackConfig, calls: HttpSenderCalls, *, clock: Clock | None = None
    ) -> None:
        self._counters = CallbackStats()
        self._config = config
        self._calls = calls
        self._clock = clock or SystemClock()
        self._session = OutboxSession(config, "callback", tables=_TABLES)
        self._dropped = SummedLog(_log, logging.WARNING)
        self._alone_until: dict[tuple[int, str], int] = {}  # in ns of the monotonic clock

    def stats(self) -> CallbackStats:
        """Return the counters as they are now."""
        return deepcopy(self._counters)

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics at this instant."""
        for metric in METRICS:
            yield from metric.samples(self._counters, {})

    async def check(self) -> None:
        """Connect to the store.

        Raises:
            ConnectError: the database refuses the login, or its certificate does not hold.
            SchemaError: the database has no such store, or one of another version.
            DurabilityError: the database may lose what it has committed.
            RetryError: the database is away.
        """
        await self._session.fetch(SQL["version"])

    async def run(self) -> None:
        """Ask and report forever; a database error is logged, and waited out.

        Raises:
            DurabilityError: the database was set to lose what it has committed.
        """
        self._session.home.join()
        await endless("callback", self._keep_working)

    async def _keep_working(self) -> None:
        ask = self.ask_once, self._config.ask_rows_max
        report = self.return_once, self._config.return_rows_max
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._keep_serving(tasks, WAITING, *ask))
                tasks.create_task(self._keep_serving(tasks, CONFIRMED, *report))
                tasks.create_task(self._keep_trimming())
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _keep_serving(
        self,
        tasks: asyncio.TaskGroup,
        state: int,
        once: Callable[[str], Awaitable[int]],
        rows_max: int,
    ) -> None:
        """Serve each sender by a task of its own: one that hangs must not delay another.

        Only senders that can be called hang, so tasks are as few as these.
        """
        serving: set[str] = set()

        async def serve(sender: str) -> None:
            while await once(sender) >= rows_max:
                pass
            serving.discard(sender)

        while True:
            rows = await self._session.fetch(SQL["senders"], self._now(), state)
            for sender in sorted({row["sender"] for row in rows} - serving):
                serving.add(sender)
                tasks.create_task(serve(sender))
            await asyncio.sleep(self._config.round_seconds)

    async def _keep_trimming(self) -> None:
        while True:
            await asyncio.sleep(_KEEP_SECONDS)
            await self._session.check_durability()
            await self.trim()

    async def close(self) -> None:
        """Close the connection."""
        await self._session.close()
        self._dropped.log()

    # ---------------------------------------------------------------------------------- records

    async def take_checks(self, value: bytes | None) -> None:
        """Store what one check record says; a bad one is counted."""
        self._session.home.check()
        try:
            record = decode_checks(value)
        except BadRecord as error:
            self._drop(error)
            return
        ids = sorted({UUID(bytes=each) for each in record.message_ids})
        names, due_at = sorted(set(record.consumers)), time_of(record.due_unix_ns)
        # A repeat changes nothing; messages whose confirm came first are returned.
        given = ids, names, record.sender, due_at, self._return_at()
        await self._session.fetch(SQL["add_checks"], *given)
        self._counters.checks += len(record.message_ids)

    async def take_confirms(self, value: bytes | None) -> None:
        """Store what one confirm record says; a bad one is counted."""
        self._session.home.check()
        try:
            record = decode_confirms(value)
        except BadRecord as error:
            self._drop(error)
            return
        now = self._now()
        applied: dict[UUID, bytes] = {}
        retrying: dict[UUID, datetime] = {}
        for confirm in record.confirms:
            message_id = UUID(bytes=confirm.message_id)
            if confirm.kind == APPLIED:
                applied[message_id] = confirm.proof
            else:
                until = time_of(min(confirm.until_unix_ns, DUE_NS_MAX))
                until = min(until, now + _PARKED_MAX) + timedelta(seconds=self._config.late_seconds)
                retrying[message_id] = max(until, retrying.get(message_id, until))
        consumer = record.consumer
        if applied:  # a repeat changes nothing
            ids, proofs = zip(*sorted(applied.items()), strict=True)
            given = ids, [consumer] * len(ids), now, self._return_at(), proofs
            await self._session.fetch(SQL["add_confirms"], *given)
        if retrying:  # nothing is asked about what a consumer has parked, before its time
            ids, untils = zip(*sorted(retrying.items()), strict=True)
            await self._session.fetch(SQL["postpone"], ids, [consumer] * len(ids), untils)
        self._counters.confirms += len(applied)

    def pass_over(self, error: UnreadableRecord) -> None:
        """Count a record that cannot be read; it is passed over, as one with bad content is.

        What it confirms is asked for again; what it asks to check is left to a sweep.
        """
        self._counters.bad_records["unreadable"] += 1
        _log.error("callback: %s; passed over", reason_of(error))

    async def caught_up(self, places: Mapping[tuple[str, int], int]) -> None:
        """Store until when (unix ns) partitions of confirm topics were taken in.

        -1: a partition that is only known to exist.
        """
        if places:
            read, until = zip(*sorted(places.items()), strict=True)
            given = *zip(*read, strict=True), list(map(time_of, until))
            await self._session.fetch(SQL["read_until"], *given)

    # ------------------------------------------------------------------------------------- time

    async def ask_once(self, sender: str) -> int:
        """Ask `sender` about what is due without a confirm; return how many."""
        token = uuid4()
        taken = await self._claim(WAITING, sender, token, self._config.ask_rows_max)
        groups = _by_consumer(taken)
        replies = await asyncio.gather(*(self._ask(sender, *group) for group in groups.items()))
        now = self._now()
        for rows, (replied, error) in zip(groups.values(), replies, strict=True):
            asked = [self._outcome(row, replied.get(row.message_id), error, now) for row in rows]
            await self._session.fetch(SQL["asked"], *zip(*asked, strict=True), token)
            self._counters.asked += len(rows)
        return len(taken)

    async def return_once(self, sender: str) -> int:
        """Report confirms to `sender`; return how many."""
        token = uuid4()
        taken = await self._claim(CONFIRMED, sender, token, self._config.return_rows_max)
        groups = _by_consumer(taken).items()
        await asyncio.gather(*(self._return(token, sender, *group) for group in groups))
        return len(taken)

    async def _claim(
        self, state: int, sender: str, token: UUID, rows_max: int
    ) -> list[ClaimedDelivery]:
        """Claim deliveries that are due in `state`; unfinished ones fall due again.

        None of a sender that is left alone, since it has just not answered.
        """
        if self._clock.monotonic_ns() < self._alone_until.get((state, sender), 0):
            return []
        now = self._now()
        # By then the process that made the claim must be dead.
        until = now + timedelta(seconds=self._config.call_seconds * 3)
        topics = self._config.confirm_topics
        given = now, state, token, until, rows_max, topics, sender
        rows = await self._session.fetch(SQL["claim"], *given)
        return [ClaimedDelivery(*row) for row in rows]

    async def trim(self) -> None:
        """Forget what is old and has ended, or is of no known client."""
        before = self._clock.wall_ns() / 1e9 - self._config.retention_seconds
        ever, senders = time_of(DUE_NS_MAX), set[str]()
        for state in (WAITING, CONFIRMED):
            senders |= {row[0] for row in await self._session.fetch(SQL["senders"], ever, state)}
        unknown = sorted(each for each in senders if not self._calls.knows(each))
        count, is_full = 0, True
        while is_full:
            given = smallest_id(before), _TRIM_ROWS, unknown
            ((rows, unasked),) = await self._session.fetch(SQL["trim"], *given)
            count, is_full = count + unasked, rows >= _TRIM_ROWS
        if count:
            _log.error(
                "callback: %s forgotten, since no client has such a name: %s",
                counted(count, "delivery", "deliveries"), printable(unknown),
            )  # fmt: skip

    async def _ask(
        self, sender: str, consumer: str, rows: Sequence[ClaimedDelivery]
    ) -> tuple[Mapping[UUID, Reply], str | None]:
        try:
            async with asyncio.timeout(self._config.call_seconds):
                ids = sorted(row.message_id for row in rows)
                return await self._calls.resend(sender, consumer, ids), None
        except (OrderchainError, OSError) as error:
            reason = reason_of(error)
            _log.warning("callback: %s did not answer: %s", printable(sender), reason)
            self._leave_alone(WAITING, sender)
            return {}, reason

    async def _return(
        self, token: UUID, sender: str, consumer: str, rows: Sequence[ClaimedDelivery]
    ) -> None:
        self._counters.returns += 1
        try:
            async with asyncio.timeout(self._config.call_seconds):
                proofs = {row.message_id: row.proof or b"" for row in rows}
                refused = set(await self._calls.confirmed(sender, consumer, proofs))
        except (OrderchainError, OSError) as error:
            reason = reason_of(error)
            _log.warning(
                "callback: confirms could not be reported to %s: %s", printable(sender), reason
            )
            self._leave_alone(CONFIRMED, sender)
            at = self._now() + timedelta(seconds=self._config.rules.unanswered_seconds)
            await self._write("not_returned", rows, token, at, reason)
        else:
            forged = [row for row in rows if row.message_id in refused]
            if forged:
                self._counters.forged += len(forged)
                whose = f"callback: confirms of {printable(consumer)}"
                why = f"{whose} were refused by {printable(sender)}, since their proofs are wrong"
                self._dropped.add("proof", len(forged), lambda count: f"{why}: {count:,}")
                await self._write("refused", forged, token, self._now())
            returned = [row for row in rows if row.message_id not in refused]
            await self._write("returned", returned, token)
            self._counters.returned += len(returned)

    def _leave_alone(self, state: int, sender: str) -> None:
        seconds = self._config.rules.unanswered_seconds
        self._alone_until[state, sender] = self._clock.monotonic_ns() + int(seconds * 1e9)

    async def _write(self, name: str, taken: Sequence[ClaimedDelivery], *values: object) -> None:
        ordered = sorted(taken, key=lambda each: (each.message_id, each.consumer))
        given = columns(ordered, "message_id", "consumer")
        await self._session.fetch(SQL[name], *given, *values)

    def _outcome(
        self, row: ClaimedDelivery, reply: Reply | None, error: str | None, now: datetime
    ) -> tuple[UUID, str, bool, int, datetime, str | None]:
        """Return what the statement `asked` takes of one delivery."""
        if reply is None:
            self._counters.unanswered += 1
            error = error or "left out of the answer"
        outcome = after_ask(self._config.rules, row.ask_count, reply)
        due_at = now + timedelta(seconds=outcome.again_seconds)
        return row.message_id, row.consumer, outcome.is_ended, outcome.ask_count, due_at, error

    def _drop(self, error: BadRecord) -> None:
        self._counters.bad_records[error.reason] += 1
        why = f"callback: records were dropped: {reason_of(error)}"
        self._dropped.add(error.reason, 1, lambda count: f"{why}: {count:,}")

    def _return_at(self) -> datetime:
        return self._now() + timedelta(seconds=self._config.return_seconds)

    def _now(self) -> datetime:
        return time_of(self._clock.wall_ns())


class CallbackIntake:
    """A member of the group that shares the topics.

    Offsets are committed after the store, so a crash repeats records, which the store recognizes.
    """

    def __init__(
        self, config: CallbackConfig, service: CallbackService, *, clock: Clock | None = None
    ) -> None:
        self._config = config
        self._kafka = KafkaConfig.of(config.kafka)
        self._service = service
        self._clock = clock or SystemClock()
        self._topics = (config.check_topic, *config.confirm_topics)
        self._topic_errors = TopicErrors()

    async def run(self) -> None:
        """Take records in, until cancelled. Raises what does not pass by itself."""
        await endless("callback intake", self._follow, self._kafka)

    async def _follow(self) -> None:
        if not await self._are_topics_there():
            await asyncio.sleep(_METADATA_MS / 1000)
            return
        consumer = make_consumer(
            self._kafka,
            "callback",
            *self._topics,
            group_id=self._config.name,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=_FETCH_MS,
            metadata_max_age_ms=_METADATA_MS,
        )
        try:
            async with connecting(self._kafka, self._config.connect_seconds):
                await start_client(consumer)
                places = [
                    (topic, number)
                    for topic in self._config.confirm_topics
                    for number in sorted(consumer.partitions_for_topic(topic) or ())
                ]
            await self._service.caught_up(dict.fromkeys(places, _UNREAD))
            while True:
                await self._round(consumer)
        finally:
            await close_client(consumer, _CLOSE_SECONDS)

    async def _are_topics_there(self) -> bool:
        """Look, and log those that are missing: a client would wait for them, and not say so."""
        async with (
            connecting(self._kafka, self._config.connect_seconds),
            started(make_consumer(self._kafka, "callback-topics")) as look,
        ):
            known: set[str] = await look.topics()
        self._topic_errors.look_at(self._topics, lambda topic: [0] if topic in known else None)
        return known.issuperset(self._topics)

    async def _round(self, consumer: AIOKafkaConsumer) -> None:
        """Take in what is there; then say until when everything was taken in."""
        confirms = [
            at for at in consumer.assignment() if at.topic in set(self._config.confirm_topics)
        ]
        self._topic_errors.look_at(self._topics, consumer.partitions_for_topic)
        now_ns = self._clock.wall_ns()
        async with asyncio.timeout(self._config.call_seconds):
            ends = await consumer.end_offsets(confirms) if confirms else {}
        try:
            fetched = await consumer.getmany(timeout_ms=_FETCH_MS, max_records=_RECORDS_MAX)
        except UnreadableRecord as error:
            if error.missing is not None:
                raise
            self._service.pass_over(error)
            # A damaged head may name any offset as the next one.
            async with asyncio.timeout(self._config.call_seconds):
                ends = await consumer.end_offsets([error.at])
                consumer.seek(error.at, min(error.next_offset, ends[error.at]))
                await consumer.commit()
            return
        for at, records in fetched.items():
            take = (
                self._service.take_checks
                if at.topic == self._config.check_topic
                else self._service.take_confirms
            )
            for record in records:
                await take(record.value)
        async with asyncio.timeout(self._config.call_seconds):
            if fetched:
                await consumer.commit()
            # Asked for before the fetch: what came since belongs to another round.
            read = {
                (at.topic, at.partition): now_ns
                for at in confirms
                if at in consumer.assignment() and await consumer.position(at) >= ends[at]
            }
        if read:
            await self._service.caught_up(read)


def _by_consumer(taken: Sequence[ClaimedDelivery]) -> dict[str, list[ClaimedDelivery]]:
    groups: dict[str, list[ClaimedDelivery]] = {}
    for row in taken:
        groups.setdefault(row.consumer, []).append(row)
    return groups
