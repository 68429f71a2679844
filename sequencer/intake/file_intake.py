"""A file as an intake: its rows go into a chain, each once, however often the file is taken."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, TypeVar

from msgspec import Struct

from chain_kernel.errors import InputError, OrderError, RetryError
from chain_kernel.tasks import HomeLoop
from sequencer.intake.order_file import FileOptions, OrderFile, Portion

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Sequence

    from chain_kernel.model import IntakeMark
    from sequencer.order import Ack
    from sequencer.service import Sequencer

_T = TypeVar("_T")

_END: Final = object()
"""An iterator's value once it has ended."""


class FileIntakeStats(Struct, kw_only=True):
    """Counts of what was taken from a file."""

    orders: int = 0
    """Orders added to the chain."""
    repeats: int = 0
    """Rows whose keys were in the chain before, with the same content: they add nothing."""
    rows_before: int = 0
    """Rows of the file that were taken earlier."""
    first_id: int | None = None
    last_id: int | None = None
    seconds: float = 0.0
    """From the first order to the last acknowledgement."""


class FileIntake:
    """Puts the rows of a CSV or JSON Lines file, plain or .gz, .xz, .zst, into a chain.

    Each row becomes an order whose payload is a MessagePack map of its values, all of them text.
    The file is known by its name, in its folder, or by the name that its options give it: taken
    again, it goes on after the last row that is in the chain.

        async with open_sequencer(config) as sequencer:
            with FileIntake("orders.csv.gz", FileOptions(key_column="order_id")) as intake:
                stats = await intake.run(sequencer)

    Raises:
        InputError: a row cannot be read, or its key is refused; it names the line. The rows before
            it are in the chain then, and none after it. Also for a file that has no rows, whose
            form is unknown, whose beginning is not what was taken before, or whose name was taken
            in another folder.
    """

    def __init__(
        self,
        path: Path | str,
        options: FileOptions | None = None,
        *,
        opened: io.FileIO | None = None,
    ) -> None:
        """Open the file at `path`. With `opened`, which may be a pipe, that is read instead, under
        the name of `path`.
        """
        self._file = OrderFile(Path(path), options or FileOptions(), opened)
        self.on_progress: Callable[[int, str], None] = lambda _, __: None
        """Gets how many bytes of the file were read, and what is under way."""
        self._taken: IntakeMark | None = None
        self._first: Portion | None = None
        self._is_looked_at = False
        self._home = HomeLoop("file intake")
        self._head = 0
        self._stats = FileIntakeStats()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.__exit__(*error)

    @property
    def source(self) -> str:
        """The name under which the place in the file is stored."""
        return self._file.source

    @property
    def file_bytes(self) -> int | None:
        """Size of the file; None for a pipe."""
        return self._file.file_bytes

    def stats(self) -> FileIntakeStats:
        """Return what was taken so far."""
        return self._stats

    async def has_new(self, taken: IntakeMark | None, limit: int) -> bool:
        """Return whether the file has rows after `taken`, of which at most `limit` are read.

        Called before the chain is led, it keeps a bad file from ending the term of another leader.
        """
        self._home.join()
        if taken is not None:
            await self._pass_over(taken)
        self._taken, self._is_looked_at = taken, True
        self._first = await self._next(limit)
        return self._first is not None

    async def run(self, sequencer: Sequencer) -> FileIntakeStats:
        """Add the rest of the file to the chain of `sequencer`, and return what was added.

        Raises:
            InputError: a row is bad, or the file is not the one that was taken before.
            RetryError: another process has taken the file further since `has_new`.
            SettingError: in another event loop or thread than the one that has looked at it.
            OrderchainError: one of the errors of `Sequencer.submit_many`.
        """
        self._home.join()
        taken = await sequencer.intake(self.source)
        if not self._is_looked_at:
            await self.has_new(taken, sequencer.batch_rows_max)
        if taken != self._taken:
            raise RetryError(f"another process adds {self.source} to the chain too")
        self._head = sequencer.stats().head_persisted
        started = time.monotonic()
        await self._feed(sequencer)
        self._stats.seconds = time.monotonic() - started
        return self._stats

    async def _feed(self, sequencer: Sequencer) -> None:
        """Commit one portion after the other.

        A portion is handed over only when the one before it is in the chain: after a refused one it
        would move the file's mark past rows that were not taken. The next one is read and encoded
        meanwhile.
        """
        portion: Portion | InputError | None = self._first
        while isinstance(portion, Portion):
            commit = asyncio.create_task(self._submit(sequencer, portion))
            upcoming: Portion | InputError | None
            try:
                # The commit must have begun before the next portion is read: reading blocks.
                await asyncio.sleep(0)
                upcoming = await self._next(sequencer.batch_rows_max)
            except InputError as error:
                upcoming = error
            finally:
                await commit
            self.on_progress(self._file.file_position, f"id {self._stats.last_id}")
            portion = upcoming
        if portion is not None:
            raise portion

    async def _submit(self, sequencer: Sequencer, portion: Portion) -> None:
        for part in portion.within(sequencer.batch_bytes_max):
            try:
                self._count(await sequencer.submit_many(part.orders, intake=part.mark))
            except OrderError as error:
                await self._submit_up_to_bad(sequencer, part, error)
                raise

    async def _submit_up_to_bad(
        self, sequencer: Sequencer, portion: Portion, refusal: OrderError
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
                self._count(await sequencer.submit_many(before.orders, intake=before.mark))
            alone = portion.part(index, index + 1)
            try:
                self._count(await sequencer.submit_many(alone.orders, intake=alone.mark))
            except OrderError as error:
                raise InputError(
                    error.field, error.value, error.expected, portion.line_of(index)
                ) from error
            start = index + 1

    def _count(self, acks: Sequence[Ack]) -> None:
        """Count a committed batch. A repeat, even within the batch, has another order's place."""
        stats = self._stats
        new = {ack.id for ack in acks if ack.id > self._head}
        stats.repeats += len(acks) - len(new)
        if not new:
            return
        stats.orders += len(new)
        self._head = stats.last_id = max(new)
        if stats.first_id is None:
            stats.first_id = min(new)

    async def _pass_over(self, taken: IntakeMark) -> None:
        """Read past what was taken before. Raises InputError when that content has changed."""
        steps = self._file.pass_over(taken)
        while await self._read(lambda: next(steps, _END)) is not _END:
            self.on_progress(self._file.file_position, "known rows")
            await asyncio.sleep(0)
        self._stats.rows_before = taken.position

    async def _next(self, limit: int) -> Portion | None:
        return await self._read(lambda: self._file.read(limit))

    async def _read(self, read: Callable[[], _T]) -> _T:
        """Return what `read` returns. A pipe is read beside the loop: the lease must go on.

        A thread that waits for another process cannot be stopped: nothing waits for it at the end.
        """
        if not self._file.is_stream:
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

        threading.Thread(target=work, name="file intake", daemon=True).start()
        return await found
