"""The outbox's tables in memory answer every statement as PostgreSQL does, and leave the same rows.

Calls are drawn from a seed: what they ask for depends on nothing that they have returned.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from chain_kernel.sql import load_sql
from chain_kernel.testing.virtual_loop import run_virtual
from local_stack.postgres import SUPERUSER
from outbox import Destination, save_destinations
from outbox.message import MessageIds
from outbox.sender.transaction import STORE
from outbox.testing.servers.callback import CallbackTables
from outbox.testing.servers.inbox import InboxTables
from outbox.testing.servers.sender import DecisionTables, SenderTables
from outbox.testing.servers.sql import NEVER, OutboxDatabase
from tests.judge.statuses import Statuses

DAY = 86_400.0
CALLS = 800
"""Each seed draws so many."""
KEPT = 8
"""The last messages: those that calls are about."""
ALL = 10_000
"""Rows: which of those that are due at one moment are left out is the server's own affair."""

DESTINATIONS = [
    Destination(name="a", topic="a", consumers=("x", "y"), tries_max=2, resend_seconds=DAY,
                resend_seconds_max=DAY),
    *(Destination(name=name, topic=name, confirm="none", tries_max=tries, resend_seconds=DAY,
                  resend_seconds_max=DAY) for name, tries in (("b", 9), ("c", 1))),
]  # fmt: skip
FILES = {
    name: load_sql("outbox", f"sql/{name}.sql")
    for name in ("store", "acts", "service", "prepared", "checked_sender", "inbox_queries",
                 "callback_queries")
}  # fmt: skip
LONG_AGO, LATER = datetime(1970, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)
KEYS: list[bytes | None] = [b"k", b"l", None]

Call = tuple[str, Sequence[Any]]
Fetch = Callable[..., Any]


class Draw:
    """Draws calls: few ids and tokens, so that they meet; what has ended makes room."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        ids = MessageIds(lambda: 1_600_000_000_000_000_000, self.random.randbytes)
        self.new = [UUID(bytes=each.bytes) for each in reversed(ids.draw(KEPT + CALLS))]
        self.ids: list[UUID] = []
        self.tokens = [UUID(int=number + 1) for number in range(2)]

    def some(self) -> list[UUID]:
        return sorted(self.random.sample(self.ids, self.random.randint(1, 5)))

    def each(self, ids: Sequence[object], *choices: Any) -> list[Any]:
        return [self.random.choice(choices) for _ in ids]

    def of(self, *statuses: int) -> list[int]:
        """Return some of the statuses that a call may name."""
        return self.random.sample(statuses, self.random.randint(1, len(statuses)))

    def due(self) -> datetime:
        return self.random.choice((LONG_AGO, LATER))

    def calls(self) -> Iterator[Call]:
        while len(self.ids) < KEPT:
            yield self._store()
        parts = (
            self._store, self._of_sender, self._prepared, self._checked, self._of_inbox,
            self._of_callback,
        )  # fmt: skip
        for _ in range(CALLS):
            yield self.random.choices(parts, (1, 6, 4, 4, 4, 4))[0]()

    def _store(self) -> Call:
        ids = [self.new.pop() for _ in range(self.random.randint(1, 2))]
        self.ids = [*self.ids, *ids][-KEPT:]
        claim, check_at = self.random.choice(
            ((None, None), (str(self.tokens[0]), None), (None, "soon"))
        )
        if check_at:
            check_at = (datetime.now(UTC) + timedelta(days=self.random.choice((-1, 1)))).isoformat()
        texts = list(map(str, ids))
        given = texts, self.each(ids, "a", "b"), self.each(ids, "k", None), [None] * len(ids)
        sender = self.random.choice((None, "s")) if check_at else None
        return STORE, (*given, ["cGF5"] * len(ids), claim, check_at, sender, None)

    def _of_sender(self) -> Call:
        sql, ids = FILES["store"], self.some()
        who, tokens = self.each(ids, "x", "y", ""), self.each(ids, *self.tokens)
        statuses = self.of(0, 1)
        why, seconds = self.each(ids, "reason", "other"), self.each(ids, -DAY, DAY)
        numbers, act = self.each(ids, 0, 1), self.random.choice(("retry", "abandon", "resend"))
        return self.random.choice((
            lambda: (sql["due"], (self.due(), ALL, statuses, ["a"], self.each([1], 0, ALL), ALL)),
            lambda: (sql["claim"], (ids, who, seconds, tokens[0])),
            lambda: (sql["wait"], (ids, who, seconds)),
            lambda: (sql["give_up"], (ids, who, why, self.of(0, 1))),
            lambda: (sql["messages"], (ids, ids[0], ids[-1])),
            lambda: (sql["acknowledged"], (ids, tokens, why, numbers, numbers, self.of(0, 1))),
            lambda: (sql["done_by_broker"], (ids, tokens, self.of(0, 1))),
            lambda: (sql["failed"], (ids, tokens, why, self.of(0, 1))),
            lambda: (sql["released"], (ids, tokens, self.each(ids, "why", None), self.of(0, 1))),
            lambda: (sql["applied"], (ids, who, self.of(0, 1, 3))),
            lambda: (sql["known"], (ids, who)),
            lambda: (sql["retrying"], (ids, who, [self.due() for _ in ids], 60.0, self.of(0, 1))),
            lambda: (sql["save_progress"], (["x"], ["a"], numbers[:1], numbers[:1])),
            lambda: (sql["progress"], ()),
            lambda: (FILES["acts"]["act"], (ids, None, None, None, None, 9, act, "p", "r")),
            lambda: (FILES["acts"]["act"], (None, "a", "x", [1], ids[0], 1, act, "p", "r")),
            lambda: (FILES["service"]["stored"], (ids, ids[0], ids[-1])),
        ))()  # fmt: skip

    def _prepared(self) -> Call:
        sql, ids, token = FILES["prepared"], self.some(), self.random.choice(self.tokens)
        claim, counts = self.random.choice((None, token)), self.each(ids, 1, 2)
        return self.random.choice((
            *((sql["claim_checks"], (until, token, self.due(), ALL, others, LONG_AGO))
              for until, others in ((LATER, []), (LATER, [""]), (LONG_AGO, ["s"]))),
            (sql["ask_again"], (ids, counts, [self.due() for _ in ids], ["e"] * len(ids), token)),
            (sql["checks_used_up"], (ids, counts, token, [4])),
            (sql["committed"], (ids, self.of(3, 4), claim)),
            (sql["rolled_back"], (ids[:1], self.of(3, 4), claim)),
            (sql["standing"], (ids, ids[0], ids[-1])),
        ))  # fmt: skip

    def _checked(self) -> Call:
        sql, ids, token = FILES["checked_sender"], self.some(), self.random.choice(self.tokens)
        who = self.random.choice(("x", "y", ""))
        return self.random.choice((
            (sql["claim"], (ids, who, token, self.of(0, 1), self.random.choice((1, 3)))),
            (sql["sent"], (ids, token, self.of(0, 1))),
            (sql["give_up"], (ids, who, self.of(0, 1), self.random.choice((1, 3)))),
        ))  # fmt: skip

    def _of_inbox(self) -> Call:
        sql, ids = FILES["inbox_queries"], self.some()
        keys, times = self.each(ids, *KEYS), [LONG_AGO] * len(ids)
        texts, numbers = self.each(ids, "a", "b"), self.each(ids, 0, 1)
        one, key = ids[0], self.random.choice(KEYS)
        row = [one, "a", "a", 0, 7, LONG_AGO, key, None, None, b"", b"payload"]
        rows = [[each, "a", "a", 0, 7, LONG_AGO, each_key, None, None, b"", b"payload"]
                for each, each_key in zip(ids, self.each(ids, *KEYS[:2]), strict=True)]  # fmt: skip
        name, given = self.random.choice((
            ("claim", (ids, keys, texts, numbers, numbers, times)),
            ("claim", (ids, keys, texts, numbers, numbers, times)),
            ("admit", (ids, keys)), ("judge", (ids, keys)),
            ("park", (*row, 1, self.due(), "error")), ("park", (*row, 2, self.due(), "error")),
            ("park_in_turn", (*map(list, zip(*rows, strict=True)), LONG_AGO, "waits")),
            ("parked_until", (ids,)), ("waiting", (b"k", self.random.randint(0, 2), 2)),
            ("record", (one, "a", 0, 7, LONG_AGO)), ("park_again", (one, 3, self.due(), "again")),
            ("take_again", (one, 1)), ("postpone", (one, self.due())), ("unpark", (one,)),
            ("next_of_key", (b"k", LONG_AGO)), ("begin", ("a", numbers, False)),
            *[("bury", (*row, 3, "tries used up", "error"))] * 3,
            ("starts", (["a", "b"],)), ("know_partitions", (["a", "a", "b"], [0, 1, 0])),
            ("keep_floors", (["a", "a", "b"], [0, 1, 0], self.some()[:1] * 3)),
            ("highest_floors", ()), ("horizon", (datetime.now(UTC),)), ("retire", (self.ids[3],)),
        ))  # fmt: skip
        if name == "judge" and self.random.random() < 0.5:  # by a name, not a number
            return sql["applied"], (self.random.choice("xy"), ids)
        return sql[name], (self.random.choice((1, 1, 2)), *given)

    def _of_callback(self) -> Call:
        sql, ids, token = FILES["callback_queries"], self.some(), self.random.choice(self.tokens)
        who, at = self.each(ids, "x", "y"), datetime.now(UTC)
        ends, numbers = self.each(ids, True, False), self.each(ids, 0, 1)
        state = self.random.choice((0, 1))
        dues = [self.due() for _ in ids]
        return self.random.choice((
            (sql["add_checks"], (ids, ["x", "y"], "s", LONG_AGO, LONG_AGO)),
            (sql["add_confirms"], (ids, who, at, LONG_AGO, self.each(ids, b"1", b"2"))),
            (sql["postpone"], (ids, who, dues)),
            (sql["read_until"], (["c"], [0], [self.due()])),
            (sql["senders"], (at, state)),
            (sql["claim"], (at, state, token, self.due(), ALL, ["c"], "s")),
            (sql["asked"], (ids, who, ends, numbers, dues, ["e"] * len(ids), token)),
            (sql["returned"], (ids, who, token)), (sql["refused"], (ids, who, token, LONG_AGO)),
            (sql["not_returned"], (ids, who, token, LATER, "e")),
            (sql["trim"], (self.ids[3], ALL, [])),
        ))  # fmt: skip


PENDING = (
    "destination status is_decided asked send_count claim_count check_count claim_token topic"
    " partition offset last_error"
)
TABLES = {
    "outbox_pending": ("message_id consumer", f"{PENDING} next_send_at"),
    "outbox_done": ("message_id consumer", "destination status send_count"),
    "inbox": ("consumer_id message_id", ""),
    "inbox_parked": ("consumer_id message_id", "place key failures due_at last_error"),
    "inbox_dead": ("consumer_id message_id", "failures reason"),
    "inbox_partition": ("consumer_id topic topic_partition", "floor"),
    "inbox_consumer": ("consumer_id", "name horizon"),
    "outbox_decision": ("message_id", "is_done"),
    "callback_delivery": (
        "message_id consumer", "sender state due_at ask_count claim_token proof"
    ),
    "callback_intake": ("topic partition", "read_until"),
}  # fmt: skip
"""What is compared: keys and columns."""


def plain(value: Any) -> Any:
    """Times only by whether they have come: the two clocks differ."""
    if isinstance(value, datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=UTC)
        return "never" if aware == NEVER else aware.year if aware.year in (1970, 2200) else "now"
    if isinstance(value, float):
        return "seconds"
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, list | tuple):
        seen = map(plain, value)
        # What is gathered into an array comes in any order.
        return tuple(sorted(seen) if all(type(each) is int for each in value) else seen)
    return value


async def played(seed: int, fetch: Fetch, dump: Callable[[], Any]) -> AsyncIterator[Any]:
    """Yield what each call has returned, and the rows that are left after it."""
    sql = FILES["inbox_queries"]
    for number, name in enumerate("xy", start=1):
        await fetch(sql["register"], name)
        await fetch(sql["know_topics"], number, ["a", "b"])
        yield name, [row["consumer_id"] for row in await fetch(sql["find_consumer"], name)]
    for statement, given in Draw(seed).calls():
        rows = sorted(str(plain(list(row))) for row in await fetch(statement, *given))
        yield statement[:60], rows, await dump()


def judged(statuses: Statuses, table: str, key: Any, before: Any, after: Any) -> None:
    """Show the judge a change of a delivery."""
    stood = before.get("status"), before.get("is_decided")
    if table == "done":
        statuses.done(str(key), after["status"])
    elif table == "pending" and after:
        stands = after["status"], after["is_decided"]
        if not before:
            statuses.stored(str(key), *stands)
        elif stood != stands:
            statuses.moved(str(key), *stands)


async def in_memory(seed: int, statuses: Statuses) -> list[Any]:
    database = OutboxDatabase("memory", Random(seed))
    sender, inbox = SenderTables(database, bytes(32)), InboxTables(database)
    decisions, callback = DecisionTables(database), CallbackTables(database)
    sender.destinations.update({each.name: each for each in DESTINATIONS})
    tables = (
        sender.pending, sender.done, inbox.inbox, inbox.parked, inbox.dead, inbox.partitions,
        inbox.consumers, decisions.decisions, callback.deliveries, callback.read,
    )  # fmt: skip
    connection = database.connect()
    database.watch = partial(judged, statuses)

    async def fetch(*given: Any) -> Any:
        rows = await connection.fetch(*given)
        return [row for row in rows if not hasattr(row, "before") and not isinstance(row, bool)]

    async def dump() -> Any:
        return [
            sorted(
                str(plain([*(key if isinstance(key, tuple) else [key]), *(
                    row.get(name, row.get("until")) for name in names.split()
                )]))
                for key, row in table.committed.items()
            )
            for table, (_, names) in zip(tables, TABLES.values(), strict=True)
        ]  # fmt: skip

    return [seen async for seen in played(seed, fetch, dump)]


async def as_in_postgres(seed: int, dsn: str, memory: list[Any]) -> None:
    connection = await asyncpg.connect(dsn)
    await save_destinations(connection, DESTINATIONS)

    arrays = []
    for table, (keys, names) in TABLES.items():
        columns = ", ".join(f'"{name}"' for name in f"{keys} {names}".split())
        arrays.append(f"ARRAY(SELECT ROW({columns}) FROM {table})")  # noqa: S608
    every_row = await connection.prepare(f"SELECT {', '.join(arrays)}")

    async def dump() -> Any:
        found = await every_row.fetchrow()
        return [sorted(str(plain(list(row))) for row in rows) for rows in found]

    try:
        expected = iter(memory)
        async for found in played(seed, connection.fetch, dump):
            assert next(expected) == found, f"seed {seed}"
    finally:
        await connection.close()


@pytest.mark.guarantee("G10")
@pytest.mark.parametrize("seed", range(6))
def test_statements_answer_in_memory_as_in_postgresql(
    seed: int, database_with: Callable[..., str], postgres_server: Any
) -> None:
    name = database_with("outbox", "inbox", "decision", "callback")
    memory = run_virtual(in_memory(seed, statuses := Statuses("G10 hand on record")))
    asyncio.run(as_in_postgres(seed, postgres_server.dsn(SUPERUSER, name), memory))
    # So whatever is written in whatever order, rows of PostgreSQL move along the table, too.
    assert statuses.decided["G10 table"] > 10


# -- two connections -------------------------------------------------------------------------------


async def waits_for_each_other(connect: Callable[[], Any]) -> list[Any]:
    """Return what a second transaction finds, while the first one has it and after its end."""
    sql, found, ids = FILES["inbox_queries"], list[Any](), iter(Draw(0).new)
    first, second, places = await connect(), await connect(), (["a"], [0], [1], [LONG_AGO])
    await first.fetch(sql["register"], "x")
    for ends in ("rollback", "commit"):
        for statement, *given in (
            (sql["claim"], 1, [next(ids)], [None], *places),
            (sql["record"], 1, next(ids), "a", 0, 1, LONG_AGO),
        ):
            transaction = first.transaction()
            await transaction.start()
            found.append(len(await first.fetch(statement, *given)))
            waiting = asyncio.ensure_future(second.fetch(statement, *given))
            found.append(await is_done_soon(waiting))
            await getattr(transaction, ends)()
            found += [len(await waiting), len(await second.fetch(statement, *given))]
    one = next(ids)
    row = [one, "a", "a", 0, 7, LONG_AGO, b"k", None, None, b"", b"", 1, LONG_AGO, "error"]
    await first.fetch(sql["park"], 1, *row)
    async with first.transaction():
        taken = [await each.fetch(sql["take_due"], 1, LONG_AGO, LATER) for each in (first, second)]
        found += map(len, taken)
        await first.fetch(sql["park_again"], 1, one, 2, LATER, "error")
        await second.fetch(sql["next_of_key"], 1, b"k", LATER)  # waits for nothing: it has a time
    await decides_once(first, second, str(next(ids)), found)
    # One whose connection breaks while it waits has nothing afterwards.
    claim = sql["claim"], 1, [next(ids)], [None], *places
    transaction = first.transaction()
    await transaction.start()
    await first.fetch(*claim)
    await second.transaction().start()
    waiting = asyncio.ensure_future(second.fetch(*claim))
    found.append(await is_done_soon(waiting))
    second.terminate()
    await transaction.rollback()
    await asyncio.wait([waiting])
    found += [type(waiting.exception()), len(await first.fetch(*claim, timeout=10.0))]
    await first.close()
    return found


async def decides_once(first: Any, second: Any, message_id: str, found: list[Any]) -> None:
    """A check waits for a transaction that has decided, and refuses one that has not."""
    decide, check = FILES["prepared"]["decide"], FILES["prepared"]["check_decision"]
    transaction = first.transaction()
    await transaction.start()
    await first.fetch(decide, message_id)
    found.append((await second.fetch(check, message_id, 50))[0][0])
    await transaction.rollback()
    found.append((await second.fetch(check, message_id, 50))[0][0])
    try:
        await first.fetch(decide, message_id)
    except asyncpg.UniqueViolationError as error:
        found.append(getattr(error, "detail", None))


async def is_done_soon(task: asyncio.Future[Any]) -> bool:
    """Return whether a statement waits for nothing: that of one which waits is not done."""
    return bool((await asyncio.wait([task], timeout=0.2))[0])


def test_transactions_wait_for_each_other_in_memory_as_in_postgresql(
    database_with: Callable[..., str], postgres_server: Any
) -> None:
    dsn = postgres_server.dsn(SUPERUSER, database_with("inbox", "decision"))
    database = OutboxDatabase("memory", Random(0))
    InboxTables(database)
    DecisionTables(database)
    found = run_virtual(waits_for_each_other(database.open))
    assert found == asyncio.run(waits_for_each_other(lambda: asyncpg.connect(dsn)))
