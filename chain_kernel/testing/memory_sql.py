"""A user's database in memory: transactions, savepoints, waits, what asyncpg's connections offer.

It knows no SQL. A statement is answered by a function that was given for its text (`answer`), or by
one of the engine's own. It keeps these rules of PostgreSQL: an error breaks the transaction, the
commit of a broken one rolls it back, the second one waits for the first, and a killed process takes
its open transactions with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final, Self

from chain_kernel.clients.postgres_errors import (
    ConnectionDoesNotExistError,
    InFailedSQLTransactionError,
    InterfaceError,
    UniqueViolationError,
    rolled_back,
)
from chain_kernel.errors import SettingError
from chain_kernel.testing.virtual_loop import alive, current_process

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
    from random import Random
    from types import TracebackType

    from chain_kernel.testing.virtual_loop import Process

    AnsweredRows = Sequence[Any] | None
    AnswerTo = Callable[..., AnsweredRows]
    """Gets the tables and the statement's arguments; returns its rows."""
    BuiltIn = Callable[..., Awaitable[AnsweredRows]]
    """Gets the connection, whose transaction it joins, and the arguments."""

TABLES: Final = "tables"
"""The lock of all of the user's tables: the first statement of a transaction takes it."""

BEFORE_COMMIT: Final = "before the commit"
AFTER_COMMIT: Final = "after the commit"

TRIP_SECONDS_MAX: Final = 0.005
"""The longest time of one statement. Virtual: it only decides which one comes first."""


class SqlDatabase:
    """A database in memory: what has committed, who holds which lock, which statements are
    known."""

    def __init__(self, random: Random) -> None:
        self.tables: dict[str, Any] = {}
        """The user's tables, as committed."""
        self.unknown: SettingError | None = None
        """The first statement that had no answer."""
        self._random = random
        self._answers: dict[str, AnswerTo] = {}
        self._built_in: dict[str, BuiltIn] = {}
        self._holders: dict[Hashable, SqlTransaction] = {}
        self._waiting: list[asyncio.Future[None]] = []
        self._connections: list[MemoryConnection] = []

    def answer(self, statement: str, function: AnswerTo) -> None:
        """Make `statement` do what `function` does."""
        self._answers[_plain(statement)] = function

    def build_in(self, statement: str, function: BuiltIn) -> None:
        """Make a statement of the engine's own do what `function` does with its connection."""
        self._built_in[_plain(statement)] = function

    def connect(self) -> MemoryConnection:
        """Return a connection of the running process."""
        connection = MemoryConnection(self)
        self._connections.append(connection)
        return connection

    def end(self, process: Process) -> None:
        """Break the connections of a process that was killed: what is open is rolled back."""
        for connection in list(self._connections):
            if connection.process is process:
                connection.terminate()

    def gone(self, connection: MemoryConnection) -> None:
        """Forget a connection that was closed."""
        if connection in self._connections:
            self._connections.remove(connection)

    async def trip(self) -> None:
        """Spend the time of one statement."""
        await asyncio.sleep(self._random.uniform(0.0, TRIP_SECONDS_MAX))
        await alive()

    # -- statements --------------------------------------------------------------------------------

    async def run(
        self, connection: MemoryConnection, statement: str, arguments: Sequence[Any]
    ) -> AnsweredRows:
        """Do what a statement says, in the transaction that is open."""
        plain = _plain(statement)
        if (built_in := self._built_in.get(plain)) is not None:
            return await built_in(connection, *arguments)
        if (answer := self._answers.get(plain)) is None:
            expected = "one that `answer` was called for: there is no SQL here"
            unknown = SettingError("statement", plain, expected)
            self.unknown = self.unknown or unknown
            raise unknown
        transaction = connection.required
        await self.lock(transaction, TABLES)
        if transaction.tables is None:
            transaction.tables = deepcopy(self.tables)
        return answer(transaction.tables, *arguments)

    # -- locks -------------------------------------------------------------------------------------

    async def lock(self, transaction: SqlTransaction, name: Hashable) -> None:
        """Hold `name` until the transaction ends. It waits for a transaction that has it."""
        while not self.try_lock(transaction, name):
            if name == TABLES and self._holders[name].task is asyncio.current_task():
                expected = "one connection at a time: the first one has locked all tables"
                raise SettingError("connection", "a second one in the same handler", expected)
            one_ends: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(one_ends)
            await one_ends
            await alive()

    def try_lock(self, transaction: SqlTransaction, name: Hashable) -> bool:
        """Hold `name` until the transaction ends, unless another one has it.

        Raises ConnectionDoesNotExistError where it has ended, as when its connection was closed
        during a statement.
        """
        if transaction.is_over:
            raise ConnectionDoesNotExistError("connection was closed in the middle")
        if self._holders.setdefault(name, transaction) is not transaction:
            return False
        transaction.task = asyncio.current_task()
        return True

    def unlock(self, transaction: SqlTransaction, name: Hashable | None = None) -> None:
        """Release `name`, or everything that a transaction holds."""
        for held, holder in list(self._holders.items()):
            if holder is transaction and name in (None, held):
                del self._holders[held]
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)


class SqlTransaction:
    """The outermost transaction of a connection: what it has done, and how to undo that."""

    def __init__(self, database: SqlDatabase) -> None:
        self.tables: dict[str, Any] | None = None
        """Its own view of the user's tables, once it has used them."""
        self.task: asyncio.Task[Any] | None = None
        self.is_broken = self.is_over = False
        self._database = database
        self._done: list[tuple[Callable[[], None], Callable[[], None]]] = []
        self._checks: list[tuple[int, Callable[[], None]]] = []

    def add(
        self, at_commit: Callable[[], None] = lambda: None, undo: Callable[[], None] = lambda: None
    ) -> None:
        """Do something at the commit; on a rollback, undo what was done at once."""
        self._done.append((at_commit, undo))

    def check(self, check: Callable[[], None]) -> None:
        """Call `check` at the commit; what it raises rolls everything back."""
        self._checks.append((len(self._done), check))

    def savepoint(self) -> tuple[int, dict[str, Any] | None]:
        """Return where `roll_back` may go back to."""
        return len(self._done), deepcopy(self.tables)

    def roll_back(self, to: tuple[int, dict[str, Any] | None] = (0, None)) -> None:
        """Undo what came after a savepoint; by default all."""
        count, self.tables = to
        for _, undo in reversed(self._done[count:]):
            undo()
        del self._done[count:]
        self._checks = [each for each in self._checks if each[0] < count]
        self.is_broken = False

    def commit(self) -> None:
        """Make all of it visible at one instant. If broken, roll it back without a word."""
        if self.is_broken:
            self.end()
            return
        try:
            for _, check in self._checks:
                check()
        except BaseException:
            self.end()
            raise
        if self.tables is not None:
            self._database.tables.clear()
            self._database.tables.update(self.tables)
        for at_commit, _ in self._done:
            at_commit()
        self._done.clear()
        self.is_over = True
        self._database.unlock(self)

    def end(self) -> None:
        """Roll back, and release all locks."""
        self.is_over = True
        self.roll_back()
        self._database.unlock(self)


class MemoryConnection:
    """The part of asyncpg's connection that a handler and a business use."""

    def __init__(self, database: SqlDatabase) -> None:
        self.process = current_process()
        self.at_commit: Callable[[str], Awaitable[None]] | None = None
        """Called with BEFORE_COMMIT and AFTER_COMMIT of a whole transaction: the process may end
        there."""
        self.reports_rollback = False
        """True if the commit of a broken transaction raises, as on a consumer's own connection. A
        plain one of asyncpg does not."""
        self.loses_answer = False
        """True if the next commit takes place and its answer is lost."""
        self._database = database
        self._transaction: SqlTransaction | None = None
        self._is_closed = False

    @property
    def required(self) -> SqlTransaction:
        """The open transaction. Raises SettingError outside of one."""
        if self._transaction is None:
            raise SettingError("connection", "outside of a transaction", "one in a transaction")
        return self._transaction

    # -- asyncpg's ---------------------------------------------------------------------------------

    def transaction(self, *, isolation: str | None = None, **_: object) -> TransactionBlock:
        """Return a transaction, or a savepoint inside of one; see asyncpg. It has one isolation."""
        return TransactionBlock(self)

    def is_in_transaction(self) -> bool:
        """See asyncpg."""
        return self._transaction is not None

    def is_closed(self) -> bool:
        """See asyncpg."""
        return self._is_closed

    async def execute(
        self,
        query: str,
        *args: Any,  # noqa: ANN401 - as asyncpg has it
        timeout: float | None = None,
    ) -> str:
        """See asyncpg. The status says how many rows the answer has returned."""
        return f"OK {len(await self.fetch(query, *args, timeout=timeout))}"

    async def executemany(
        self, command: str, args: Iterable[Sequence[Any]], *, timeout: float | None = None
    ) -> None:
        """See asyncpg: all of it or nothing."""
        async with self.transaction():
            for arguments in args:
                await self.fetch(command, *arguments, timeout=timeout)

    async def fetch(
        self,
        query: str,
        *args: Any,  # noqa: ANN401
        timeout: float | None = None,
        record_class: object = None,
    ) -> list[Any]:
        """See asyncpg. Rows are what the answer returns."""
        async with asyncio.timeout(timeout):
            if self._transaction is not None:
                return await self._in_transaction(query, args)
            async with self.transaction():
                return await self._in_transaction(query, args)

    async def fetchrow(
        self,
        query: str,
        *args: Any,  # noqa: ANN401
        timeout: float | None = None,
        record_class: object = None,
    ) -> Any:  # noqa: ANN401
        """See asyncpg."""
        rows = await self.fetch(query, *args, timeout=timeout)
        return rows[0] if rows else None

    async def fetchval(
        self,
        query: str,
        *args: Any,  # noqa: ANN401
        column: int = 0,
        timeout: float | None = None,
    ) -> Any:  # noqa: ANN401
        """See asyncpg. A row that is neither a sequence nor a mapping is the value itself."""
        row = await self.fetchrow(query, *args, timeout=timeout)
        if isinstance(row, Mapping):
            row = list(row.values())
        return row[column] if isinstance(row, tuple | list) else row

    def add_log_listener(self, callback: object) -> None:
        """See asyncpg. This server has nothing to say."""

    def remove_log_listener(self, callback: object) -> None:
        """See asyncpg."""

    async def close(self, *, timeout: float | None = None) -> None:
        """See asyncpg."""
        self.terminate()

    def terminate(self) -> None:
        """See asyncpg: what is open is rolled back."""
        self._is_closed = True
        self._database.gone(self)
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            transaction.end()

    # -- of statements and transactions ------------------------------------------------------------

    async def begin(self) -> tuple[int, dict[str, Any] | None] | None:
        """Open a transaction, or return a savepoint of the one that is open."""
        await self._trip()
        if self._transaction is None:
            self._transaction = SqlTransaction(self._database)
            return None
        return self._transaction.savepoint()

    async def commit(self) -> None:
        """Commit the transaction."""
        await self._trip()
        if self.reports_rollback and self._transaction is not None and self._transaction.is_broken:
            await self.roll_back(None)
            raise rolled_back()
        if self.at_commit is not None:
            await self.at_commit(BEFORE_COMMIT)
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            transaction.commit()
        if self.at_commit is not None:
            await self.at_commit(AFTER_COMMIT)
        if self.loses_answer:
            self.terminate()
            raise ConnectionDoesNotExistError("connection was closed in the middle")
        await self._trip()

    async def roll_back(self, to: tuple[int, dict[str, Any] | None] | None) -> None:
        """Roll back to a savepoint; without one the whole transaction."""
        await self._trip()
        if to is not None:
            self.required.roll_back(to)
            return
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            transaction.end()

    async def step(self) -> SqlTransaction | None:
        """Spend the time of a statement; return the transaction that it runs in."""
        if self._transaction is not None and self._transaction.is_broken:
            raise InFailedSQLTransactionError(
                "current transaction is aborted, commands ignored until end of transaction block"
            )
        await self._trip()
        return self._transaction

    async def _in_transaction(self, query: str, args: Sequence[Any]) -> list[Any]:
        transaction = self.required
        try:
            await self.step()
            return list(await self._database.run(self, query, args) or ())
        except BaseException:
            transaction.is_broken = True
            raise

    async def _trip(self) -> None:
        await alive()
        if current_process() is not self.process:
            # The end of the process would not end it: what it has open would hold its locks.
            raise SettingError("connection", "of another process", "one that this one has opened")
        if self._is_closed:
            raise InterfaceError("connection is closed")
        await self._database.trip()
        if self._is_closed:
            raise ConnectionDoesNotExistError("connection was closed in the middle")


class TransactionBlock:
    """A transaction, as `MemoryConnection.transaction` returns it."""

    def __init__(self, connection: MemoryConnection) -> None:
        self._connection = connection
        self._savepoint: tuple[int, dict[str, Any] | None] | None = None

    async def start(self) -> None:
        """See asyncpg."""
        self._savepoint = await self._connection.begin()

    async def commit(self) -> None:
        """See asyncpg. A savepoint is kept by the transaction that contains it."""
        if self._savepoint is None:
            await self._connection.commit()
        elif self._connection.required.is_broken:
            raise InFailedSQLTransactionError("current transaction is aborted")

    async def rollback(self) -> None:
        """See asyncpg."""
        await self._connection.roll_back(self._savepoint)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            await self.commit()
        elif not self._connection.is_closed():
            await self.rollback()


def _plain(statement: str) -> str:
    """Return a statement with one blank where it has any white space."""
    return " ".join(statement.split())


def stored_already(what: str, key: object, detail: str | None = None) -> BaseException:
    """Return what the driver raises if a unique key already exists."""
    error: BaseException = UniqueViolationError(f"{what} {key} is stored already")
    vars(error)["detail"] = detail
    return error
