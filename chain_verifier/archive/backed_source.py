"""A database and its archive: for receivers that are older than what the database still holds."""

from __future__ import annotations

from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from chain_kernel.clients.session import ClosedAtExit
from chain_kernel.errors import RetryError, RowsArchived, SettingError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from chain_kernel.model import ChainPosition, Mark, Run
    from chain_kernel.ports import ArchivedSource, GapSource

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class ArchiveBackedSource(ClosedAtExit):
    """Implements GapSource of `chain_kernel.ports` over a database and its archive.

    The database is always asked first, and it alone reports where the chain is. Only what it
    answers with RowsArchived is read from the archive, up to the boundary after which the database
    has the rows; then the database goes on. Closes the database; an archive holds nothing open.
    Raises SettingError where the two are of different chains.
    """

    def __init__(self, database: GapSource, archive: ArchivedSource) -> None:
        if archive.chain_id != database.chain_id:
            expected = f"chain {database.chain_id}, the database's"
            raise SettingError("chain of the archive", archive.chain_id, expected)
        self._database = database
        self._archive = archive

    async def close(self) -> None:
        """Close the database; see `chain_kernel.ports.GapSource`."""
        await self._database.close()

    @property
    def chain_id(self) -> int:
        """The chain that database and archive hold."""
        return self._database.chain_id

    async def standing(self, at_id: int, batch_id: int | None = None) -> ChainPosition:
        """Return head and mark, also of an archived row; see `chain_kernel.ports.GapSource`.

        Raises as the database and as `chain_kernel.ports.ArchivedSource.mark_at`.
        """
        try:
            return await self._database.standing(at_id, batch_id)
        except RowsArchived as error:
            boundary = await self._boundary(error)
        boundary_id = _boundary_id(boundary)
        if at_id < boundary_id:
            found = replace(boundary, mark=await self._archive.mark_at(at_id, boundary))
        else:
            found = await self._database.standing(at_id)
        if batch_id is None:
            return found
        batch = await self._archive.mark_at(batch_id, boundary)
        ends_there = batch is not None and batch.batch_last_id == batch_id
        return replace(found, batch_seal=batch.seal if batch and ends_there else None)

    async def runs(
        self, after: Mark, until_id: int, *, from_primary: bool = False
    ) -> AsyncGenerator[Run, None]:
        """Yield linked runs; see `chain_kernel.ports.GapSource`.

        Raises as the database and as `chain_kernel.ports.ArchivedSource.runs`.
        """
        while after.id < until_id:
            try:
                found = self._database.runs(after, until_id, from_primary=from_primary)
                async with aclosing(found) as runs:
                    async for run in runs:
                        yield run
                        after = run.end
                return
            except RowsArchived as error:
                boundary = await self._boundary(error)
            # The boundary may rise meanwhile: then the database refuses again, further on.
            end_id = min(until_id, _boundary_id(boundary))
            async with aclosing(self._archive.runs(after, end_id, boundary)) as runs:
                async for run in runs:
                    yield run
                    after = run.end

    async def _boundary(self, error: RowsArchived) -> ChainPosition:
        """Return where the database begins, as it reports itself. Raises RetryError."""
        try:
            return await self._database.standing(error.until_id)
        except RowsArchived as again:
            text = f"chain {error.chain_id}: rows are being detached, up to {again.until_id} by now"
            raise RetryError(text) from again

    # -- places --------------------------------------------------------------------------------

    async def row_at_or_before(self, until_id: int) -> int:
        """Return a row's id; see `chain_kernel.ports.GapSource`."""
        found = await self._database.row_at_or_before(until_id)
        if found or not until_id:
            return found
        return await self._archive.row_at_or_before(until_id)

    async def row_before_time(self, time_us: int) -> int:
        """Return the last id of a batch; see `chain_kernel.ports.GapSource`."""
        found = await self._database.row_before_time(time_us)
        if found:
            return found
        return await self._archive.row_before_time(_EPOCH + timedelta(microseconds=time_us))


def _boundary_id(boundary: ChainPosition) -> int:
    return boundary.mark.id if boundary.mark else 0
