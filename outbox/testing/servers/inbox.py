"""A consumer's tables in memory: what `outbox/sql/inbox_queries.sql` says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from chain_kernel.sql import load_sql
from outbox.consumer.attempts import _CHECKED
from outbox.message import smallest_id
from outbox.testing.servers.sql import GONE, Record, Rows, now, records

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from chain_kernel.testing.memory_sql import SqlTransaction
    from outbox.testing.servers.sql import Changed, Key, OutboxDatabase, Row, Value

    Ids = Sequence[UUID]

SQL: Final = load_sql("outbox", "sql/inbox_queries.sql")

STORED: Final = (
    "message_id", "destination", "topic", "topic_partition", "record_offset", "received_at", "key",
    "confirm_topic", "confirm_token", "headers", "payload",
)  # fmt: skip
TAKEN: Final = " ".join((*STORED, "failures"))
PLACE: Final = "message_id confirm_topic confirm_token topic topic_partition record_offset"


class InboxTables:
    """Keys begin with the number of the consumer."""

    def __init__(self, database: OutboxDatabase) -> None:
        self._database = database
        self.consumers = Rows(database, "consumer")
        self.inbox = Rows(database, "inbox")
        self.parked = Rows(database, "parked")
        self.dead = Rows(database, "dead")
        self.topics = Rows(database, "topic")
        self.partitions = Rows(database, "partition")
        database.answer_all({**SQL, "checked": _CHECKED}, self)

    # -- consumers ---------------------------------------------------------------------------------

    async def _do_find_consumer(self, tx: SqlTransaction, name: str) -> list[Record]:
        number = next((key for key, row in self._named(tx).items() if row["name"] == name), None)
        horizon = None if number is None else self._named(tx)[number]["horizon"]
        return records("consumer_id horizon version upgrade_to", [(number, horizon, 1, None)])

    def _named(self, tx: SqlTransaction) -> dict[Key, Row]:
        return self.consumers.all(tx)

    async def _do_register(self, tx: SqlTransaction, name: str) -> list[Record]:
        await self._database.lock(tx, ("name", name))
        if all(row["name"] != name for row in self._named(tx).values()):
            row = {"name": name, "horizon": UUID(int=0)}
            await self.consumers.insert(tx, len(self._named(tx)) + 1, row)
        return []

    async def _do_know_topics(
        self, tx: SqlTransaction, of: int, topics: Sequence[str]
    ) -> list[Any]:
        return [
            await self.topics.insert(tx, (of, each), {"starts": None}) for each in sorted(topics)
        ]

    async def _do_begin(
        self, tx: SqlTransaction, of: int, topic: str, starts: Sequence[int], is_moved: bool
    ) -> list[Changed]:
        begin = lambda _, row: {"starts": starts} if row["starts"] is None or is_moved else None  # noqa: E731
        return await self.topics.update(tx, [(of, topic)], begin)

    async def _do_starts(self, tx: SqlTransaction, of: int, topics: Sequence[str]) -> list[Record]:
        rows = [(topic, self.topics.one(tx, (of, topic))) for topic in topics]
        return records(
            "topic starts",
            [(name, row["starts"]) for name, row in rows if row and row["starts"] is not None],
        )

    # -- what was received -------------------------------------------------------------------------

    def _parked_keys(self, tx: SqlTransaction, of: int) -> set[bytes]:
        rows = self.parked.all(tx).items()
        return {row["key"] for (owner, _), row in rows if owner == of and row["key"] is not None}

    def _free(self, tx: SqlTransaction, of: int, given: Iterable[tuple[UUID, Any]]) -> list[UUID]:
        """Return the ids that nothing is in the way of."""
        keys, known = self._parked_keys(tx, of), {**self.parked.all(tx), **self.dead.all(tx)}
        return [each for each, key in given if (of, each) not in known and key not in keys]

    async def _do_claim(
        self, tx: SqlTransaction, of: int, ids: Ids, keys: Sequence[bytes | None],
        *placed: Sequence[Any],
    ) -> list[Record]:  # fmt: skip
        horizon = self._named(tx)[of]["horizon"]
        free = sorted(self._free(tx, of, zip(ids, keys, strict=True)))
        rows = dict(zip(ids, zip(*placed, strict=True), strict=True))
        new = [
            (each,)
            for each in free
            if each >= horizon and await self.inbox.insert(tx, (of, each), {"at": rows[each]})
        ]
        return records("message_id", new)

    async def _do_admit(
        self, tx: SqlTransaction, of: int, ids: Ids, keys: Sequence[bytes | None]
    ) -> list[Record]:
        free = self._free(tx, of, zip(ids, keys, strict=True))
        return records("message_id", [(each,) for each in free])

    async def _do_judge(
        self, tx: SqlTransaction, of: int, ids: Ids, keys: Sequence[bytes | None]
    ) -> list[Record]:
        parked, horizon = self._parked_keys(tx, of), self._named(tx)[of]["horizon"]
        tables = self.inbox.all(tx), self.parked.all(tx), self.dead.all(tx)
        return records(
            "message_id is_applied is_parked is_dead is_key_parked is_below_horizon",
            [
                (each, *((of, each) in table for table in tables), key in parked, each < horizon)
                for each, key in zip(ids, keys, strict=True)
            ],
        )

    async def _do_applied(self, tx: SqlTransaction, name: str, ids: Ids) -> list[Record]:
        numbers = [number for number, row in self._named(tx).items() if row["name"] == name]
        done = self.inbox.all(tx)
        return records("id", [(each,) for each in ids for of in numbers if (of, each) in done])

    # -- what is parked ----------------------------------------------------------------------------

    async def _do_lock_keys(
        self, tx: SqlTransaction, of: int, keys: Sequence[bytes]
    ) -> list[Record]:
        for key in sorted(keys):
            await self._database.lock(tx, ("key", of, key))
        return []

    def _of_key(self, tx: SqlTransaction, of: int, key: bytes | None) -> list[Row]:
        rows = self.parked.all(tx).items()
        found = [row for (owner, _), row in rows if owner == of and row["key"] == key]
        return [] if key is None else sorted(found, key=lambda row: int(row["place"]))

    async def _do_park(self, tx: SqlTransaction, of: int, *given: Value) -> list[bool]:
        *stored, failures, due_at, error = given
        before = self._of_key(tx, of, stored[6])
        row = {
            **dict(zip(STORED, stored, strict=True)), "failures": failures, "last_error": error,
            "place": before[-1]["place"] + 1 if before else 1, "due_at": None if before else due_at,
        }  # fmt: skip
        return [await self.parked.insert(tx, (of, stored[0]), row)]

    async def _do_park_in_turn(self, tx: SqlTransaction, of: int, *given: Value) -> list[bool]:
        *columns, due_at, error = given
        first: dict[bytes, tuple[int, bool]] = {}
        done = []
        for stored in zip(*columns, strict=True):
            if stored[6] not in first:
                before = self._of_key(tx, of, stored[6])
                first[stored[6]] = (before[-1]["place"] if before else 0, not before)
            place, is_first = first[stored[6]]
            first[stored[6]] = (place + 1, False)
            row = {
                **dict(zip(STORED, stored, strict=True)), "failures": 0, "last_error": error,
                "place": place + 1, "due_at": due_at if is_first else None,
            }  # fmt: skip
            done.append(await self.parked.insert(tx, (of, stored[0]), row))
        return done

    async def _do_parked_until(self, tx: SqlTransaction, of: int, ids: Ids) -> list[Record]:
        rows = [row for each in ids if (row := self.parked.one(tx, (of, each))) is not None]
        return records("message_id due_at", [
            (row["message_id"], row["due_at"] or min(
                (head["due_at"] for head in self._of_key(tx, of, row["key"]) if head["due_at"]),
                default=None,
            ))
            for row in rows
        ])  # fmt: skip

    async def _do_waiting(
        self, tx: SqlTransaction, of: int, key: bytes, place: int, rows_max: int
    ) -> list[Record]:
        rows = [
            (row["place"], *(row[name] for name in PLACE.split()))
            for row in self._of_key(tx, of, key)
            if row["place"] > place and row["due_at"] is None
        ]
        return records(f"place {PLACE}", rows[:rows_max])

    async def _do_take_due(
        self, tx: SqlTransaction, of: int, first: datetime, last: datetime
    ) -> list[Record]:
        seen = self.parked.all(tx)
        due = self.parked.where(
            tx, lambda key, row: key[0] == of and row["due_at"] and first <= row["due_at"] <= last
        )
        for key in sorted(due, key=lambda key: (seen[key]["due_at"], seen[key]["place"])):
            if self.parked.try_lock(tx, key):
                return records(TAKEN, [[seen[key][name] for name in TAKEN.split()]])
        return []

    async def _do_record(self, tx: SqlTransaction, of: int, each: UUID, *at: Value) -> list[Record]:
        is_new = await self.inbox.insert(tx, (of, each), {"at": at})
        return records("message_id", [(each,)] if is_new else [])

    async def _set(
        self, tx: SqlTransaction, of: int, each: UUID, **changed: Value
    ) -> list[Changed]:
        return await self.parked.update(tx, [(of, each)], lambda _, row: {**row, **changed})

    async def _do_park_again(
        self, tx: SqlTransaction, of: int, each: UUID, failures: int, due_at: datetime, error: str
    ) -> list[Changed]:
        return await self._set(tx, of, each, failures=failures, due_at=due_at, last_error=error)

    async def _do_take_again(
        self, tx: SqlTransaction, of: int, each: UUID, failures: int
    ) -> list[Record]:
        row = self.parked.one(tx, (of, each))
        is_same = row is not None and row["failures"] == failures and row["due_at"] is not None
        return records("", [()] if is_same and self.parked.try_lock(tx, (of, each)) else [])

    async def _do_postpone(
        self, tx: SqlTransaction, of: int, each: UUID, due_at: datetime
    ) -> list[Changed]:
        return await self._set(tx, of, each, due_at=due_at)

    async def _do_unpark(self, tx: SqlTransaction, of: int, each: UUID) -> list[Changed]:
        return await self.parked.update(tx, [(of, each)], lambda *_: GONE)

    async def _do_next_of_key(
        self, tx: SqlTransaction, of: int, key: bytes, due_at: datetime
    ) -> list[Changed]:
        heads = self._of_key(tx, of, key)[:1]
        return await self.parked.update(
            tx,
            [(of, row["message_id"]) for row in heads],
            lambda _, row: {**row, "due_at": due_at} if row["due_at"] is None else None,
        )

    async def _do_bury(self, tx: SqlTransaction, of: int, *given: Value) -> list[Record]:
        names = (*STORED, "failures", "reason", "last_error")
        row = {**dict(zip(names, given, strict=True)), "dead_at": now(), "abandoned_at": None}
        is_new = await self.dead.insert(tx, (of, given[0]), row)
        return records("message_id", [given[:1]] if is_new else [])

    # -- retention ---------------------------------------------------------------------------------

    async def _do_checked(self, tx: SqlTransaction) -> list[Record]:
        return []

    async def _do_extend(self, tx: SqlTransaction, _: datetime) -> list[Record]:
        return records("left_out", [(0,)])

    async def _do_know_partitions(
        self, tx: SqlTransaction, of: int, topics: Sequence[str], numbers: Sequence[int]
    ) -> list[bool]:
        places = sorted(zip(topics, numbers, strict=True))
        return [await self.partitions.insert(tx, (of, *at), {"floor": None}) for at in places]

    async def _do_keep_floors(
        self,
        tx: SqlTransaction,
        of: int,
        topics: Sequence[str],
        numbers: Sequence[int],
        floors: Ids,
    ) -> list[Record]:
        for *at, floor in sorted(
            zip(topics, numbers, floors, strict=True), key=lambda row: row[:2]
        ):
            await self.partitions.lock(tx, (of, *at))
            self.partitions.put(tx, (of, *at), {"floor": floor})
        return []

    async def _do_highest_floors(self, tx: SqlTransaction, of: int) -> list[Record]:
        found: dict[str, UUID] = {}
        for (owner, topic, _), row in self.partitions.all(tx).items():
            if owner == of and row["floor"] is not None:
                found[topic] = max(row["floor"], found.get(topic, row["floor"]))
        return records("topic floor", sorted(found.items()))

    async def _do_horizon(self, tx: SqlTransaction, of: int, at: datetime) -> list[Record]:
        known = self.partitions.all(tx).items()
        floors = [row["floor"] for (owner, *_), row in known if owner == of]
        read = {topic for (owner, topic, _), _ in known if owner == of}
        topics = {topic for owner, topic in self.topics.all(tx) if owner == of}
        is_known = bool(topics) and topics <= read and None not in floors
        highest = min([smallest_id(at.timestamp()), *floors]) if is_known else None
        return records("horizon", [(highest,)])

    async def _do_retire(self, tx: SqlTransaction, of: int, horizon: UUID) -> list[Record]:
        raised = lambda _, row: {**row, "horizon": horizon} if row["horizon"] < horizon else None  # noqa: E731
        await self.consumers.update(tx, [of], raised)
        lowest = min(row["horizon"] for row in self._named(tx).values())
        for key in self.inbox.where(tx, lambda key, _: key[1] < lowest):
            self.inbox.put(tx, key, GONE)
        return records("dropped", [(0,)])
