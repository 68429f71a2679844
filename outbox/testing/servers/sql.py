"""Tables that answer the statements of the outbox, by their names in the SQL files.

A statement sees what has committed when it begins, and what its own transaction has done. A row
that it changes is locked until the end; after a wait for it the row is looked at again.
"""

from __future__ import annotations

from contextvars import Context
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from chain_kernel.clients.postgres_errors import ConnectionDoesNotExistError
from chain_kernel.clock import time_of
from chain_kernel.errors import RetryError
from chain_kernel.sql import load_sql
from chain_kernel.testing.memory_sql import MemoryConnection, SqlDatabase, SqlTransaction
from chain_kernel.testing.virtual_loop import virtual_clock
from outbox.session import WHOLE_BARRIER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from random import Random

Row = dict[str, Any]
Key = Any
Value = Any
"""A parameter or a result of a statement."""

GONE: Final[Row] = {}
"""The result of a change that deletes the row."""

NEVER: Final = datetime.max.replace(tzinfo=UTC)
"""The driver's infinity."""

DURABILITY: Final = load_sql("outbox", "sql/durability.sql")

LATE_SECONDS_MAX: Final = 2.0


def now() -> datetime:
    """Return the time of the transaction."""
    return time_of(virtual_clock().wall_ns())


def after(seconds: float) -> datetime:
    """Return a time so many seconds later."""
    return now() + timedelta(seconds=seconds)


class Record(tuple[Any, ...]):
    """A row as the driver returns it: by place and by name."""

    names: tuple[str, ...]

    def __getitem__(self, at: Value) -> Value:
        return super().__getitem__(self.names.index(at) if isinstance(at, str) else at)

    def keys(self) -> tuple[str, ...]:
        """Return the names of the columns."""
        return self.names

    def get(self, name: str) -> Value:
        """Return the value of a column, None if there is none of that name."""
        return self[name] if name in self.names else None


def records(names: str, rows: Iterable[Iterable[Any]]) -> list[Record]:
    """Return rows with the columns of `names`."""
    kind = type("Named", (Record,), {"names": tuple(names.split())})
    return [kind(row) for row in rows]


class Changed(NamedTuple):
    """A row that a statement has changed."""

    key: Key
    before: Row
    after: Row


class Rows:
    """One table, by primary key."""

    def __init__(self, database: OutboxDatabase, name: str) -> None:
        self.committed: dict[Key, Row] = {}
        self._database = database
        self._name = name
        self._own: WeakKeyDictionary[SqlTransaction, dict[Key, Row]] = WeakKeyDictionary()

    def all(self, tx: SqlTransaction) -> dict[Key, Row]:
        """Return what a transaction sees."""
        seen = {**self.committed, **self._own.get(tx, {})}
        return {key: row for key, row in seen.items() if row}

    def one(self, tx: SqlTransaction, key: Key) -> Row | None:
        """Return a row as a transaction sees it."""
        return self._own.get(tx, {}).get(key, self.committed.get(key)) or None

    def where(self, tx: SqlTransaction, holds: Callable[[Key, Row], Value]) -> list[Key]:
        """Return the keys of rows, in their order."""
        return sorted(key for key, row in self.all(tx).items() if holds(key, row))

    def put(self, tx: SqlTransaction, key: Key, row: Row) -> None:
        """Change, insert or (GONE) delete a row that the transaction has locked."""
        own = self._own.setdefault(tx, {})
        before = own.get(key)
        own[key] = row

        def undo() -> None:
            if before is None:
                del own[key]
            else:
                own[key] = before

        tx.add(partial(self._commit, key, row), undo)

    def _commit(self, key: Key, row: Row) -> None:
        before = self.committed.pop(key, GONE)
        if row:
            self.committed[key] = row
        self._database.watch(self._name, key, before, row)

    def try_lock(self, tx: SqlTransaction, key: Key) -> bool:
        """Lock a row unless another transaction has."""
        return self._database.try_lock(tx, (self._name, key))

    async def lock(self, tx: SqlTransaction, key: Key) -> None:
        """Lock a row, and wait for another transaction that has."""
        await self._database.lock(tx, (self._name, key))

    async def insert(self, tx: SqlTransaction, key: Key, row: Row) -> bool:
        """Insert, unless the key is there: another one's that is not committed is waited for."""
        if self.one(tx, key) is not None:
            return False
        await self.lock(tx, key)
        if self.one(tx, key) is not None:
            self._database.unlock(tx, (self._name, key))
            return False
        self.put(tx, key, row)
        return True

    async def update(
        self, tx: SqlTransaction, keys: Iterable[Key], change: Callable[[Key, Row], Row | None]
    ) -> list[Changed]:
        """Change rows, or delete them where `change` returns GONE; None leaves a row alone."""
        seen = self.all(tx)
        wanted = [key for key in keys if key in seen and change(key, seen[key]) is not None]
        done: list[Changed] = []
        for key in wanted:
            await self.lock(tx, key)
            row = self.one(tx, key)
            changed = None if row is None else change(key, row)
            if row is not None and changed is not None:
                self.put(tx, key, changed)
                done.append(Changed(key, row, changed))
        return done


class OutboxConnection(MemoryConnection):
    """A connection whose commits may be lost, before or after they take place, or come late."""

    _database: OutboxDatabase

    async def add_listener(self, channel: str, hear: Callable[..., None]) -> None:
        """See asyncpg."""
        self._database.listeners[self] = hear

    async def commit(self) -> None:
        """See asyncpg."""
        database = self._database
        self.loses_answer = self.loses_answer or database.happens("answer")
        if database.happens("commit"):
            self.terminate()
            raise ConnectionDoesNotExistError("connection was closed in the middle")
        if database.happens("late") and self._transaction is not None:
            transaction, self._transaction = self._transaction, None
            self.terminate()
            delay = database.random.uniform(0.0, LATE_SECONDS_MAX)
            virtual_clock().call_later(delay, transaction.commit, context=database.context)
            raise ConnectionDoesNotExistError("connection was closed in the middle")
        await super().commit()


class OutboxDatabase(SqlDatabase):
    """A server with the statements of every session, whatever its tables are."""

    def __init__(self, name: str, random: Random) -> None:
        super().__init__(random)
        self.name = name
        self.random = random
        self.is_away = False
        self.losses: dict[str, float] = {}
        """Shares of commits whose `answer`, or which themselves (`commit`), are lost, or `late`."""
        self.listeners: WeakKeyDictionary[OutboxConnection, Callable[..., None]] = (
            WeakKeyDictionary()
        )
        self.watch: Callable[[str, Key, Row, Row], None] = lambda *_: None
        """Called with table, key, row before and row after each change, as it commits."""

        self.context = Context()
        self.answer_all(DURABILITY, self)
        self.answer_all({"barrier": WHOLE_BARRIER}, self)
        self.marks: WeakKeyDictionary[SqlTransaction, list[str]] = WeakKeyDictionary()

    def answer_all(self, statements: Mapping[str, str], tables: object) -> None:
        """Have the methods of `tables` answer the statements of their names."""
        for name, statement in statements.items():
            if (answer := getattr(tables, f"_do_{name}", None)) is not None:
                self.build_in(statement, partial(_in_transaction, answer))

    def happens(self, what: str) -> bool:
        """Draw one loss by its share."""
        share = self.losses.get(what, 0.0)
        return share > 0.0 and self.random.random() < share

    def connect(self) -> OutboxConnection:
        """Return a connection of the running process."""
        connection = OutboxConnection(self)
        self._connections.append(connection)
        return connection

    async def open(self) -> OutboxConnection:
        """Return a connection, as a session opens it. Raises RetryError while it is away."""
        await self.trip()
        if self.is_away:
            raise RetryError(f"{self.name} does not answer")
        connection = self.connect()
        connection.reports_rollback = True
        return connection

    def break_connections(self) -> None:
        """Break every connection: what is open is rolled back."""
        for connection in list(self._connections):
            connection.terminate()

    # -- durability.sql ----------------------------------------------------------------------------

    async def _do_pin(self, tx: SqlTransaction) -> list[Record]:
        return records("fsync full_page_writes synchronous_commit", [("on", "on", "on")])

    async def _do_synchronous(self, tx: SqlTransaction) -> list[Record]:
        marks = " ".join(f"{mark}-{mark}" for mark in self.marks.get(tx, ()))
        return records("setting marks system timeline", [("on", marks, "1", "1")])

    async def _do_barrier(self, tx: SqlTransaction) -> list[Record]:
        return []


async def _in_transaction(
    answer: Callable[..., Any], connection: MemoryConnection, *values: Value
) -> Value:
    return await answer(connection.required, *values)
