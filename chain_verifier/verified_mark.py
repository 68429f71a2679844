"""The verified mark of a chain: up to which row it was proven whole, by whom, and when."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Final
from uuid import UUID

from msgspec import Struct

from chain_kernel.clients.database_config import DatabaseConfig
from chain_kernel.errors import ChainMissing, InputError
from chain_kernel.sql import AUDITOR, load_sql, require_version
from chain_verifier.config import CONNECT_SECONDS, ContradictedMark
from chain_verifier.server import connection_to, run_alone

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chain_kernel.clients.postgres import Connection


_SQL: Final = load_sql("chain_verifier", "marks.sql")


class VerifiedMark(Struct, frozen=True, kw_only=True):
    """Place up to which a chain was proven whole."""

    until_id: int
    """The last row of a batch."""
    verified_by: str
    verified_at: datetime


class VerifiedExtent(Struct, frozen=True, kw_only=True):
    """Beginning and end of a chain in its database, and the place up to which it was verified."""

    database_id: UUID
    head: int
    published_id: int
    partition_ids: int
    """Number of ids that a partition spans."""
    boundary_id: int
    """Rows up to it are only in the archive; 0 for a chain that begins with its first row."""
    boundary_seal: bytes
    mark: VerifiedMark | None
    contradicted: ContradictedMark | None
    """The first mark whose rows are no longer those that were verified."""

    @property
    def start(self) -> int:
        """Beginning of a verification of what is new.

        It begins after the mark. If a mark is contradicted, it begins at the boundary: what was
        verified must then be verified once more.
        """
        if self.mark is None or self.contradicted is not None:
            return self.boundary_id
        return max(self.mark.until_id, self.boundary_id)

    @property
    def known_head(self) -> int:
        """The highest id that the chain is known to have reached."""
        return max(self.head, self.mark.until_id if self.mark else 0)

    def require_marks_hold(self) -> None:
        """Raise InputError when what was verified of a chain is not what it holds now."""
        mark = self.contradicted
        if mark is not None:
            raise InputError(
                f"seal after {mark.until_id}, verified by {mark.verified_by}",
                None if mark.found is None else mark.found.hex()[:16],
                f"{mark.seal.hex()[:16]}, as it was verified: chainctl verify names what differs",
            )


@run_alone
async def read_extent(
    database: str | DatabaseConfig, chain_id: int, connect_seconds: float = CONNECT_SECONDS
) -> VerifiedExtent:
    """Return the chain's standing. Raises ChainMissing, ConnectError, SchemaError, RetryError."""
    async with connection_to(database, AUDITOR, connect_seconds) as connection:
        return await extent_of(connection, chain_id)


@run_alone
async def read_extents(
    database: str | DatabaseConfig,
    chain_ids: Iterable[int],
    connect_seconds: float = CONNECT_SECONDS,
) -> dict[int, VerifiedExtent]:
    """Return the standing of those that exist. Raises ConnectError, SchemaError, RetryError."""
    found: dict[int, VerifiedExtent] = {}
    async with connection_to(database, AUDITOR, connect_seconds) as connection:
        for chain_id in chain_ids:
            with suppress(ChainMissing):
                found[chain_id] = await extent_of(connection, chain_id)
    return found


async def extent_of(connection: Connection, chain_id: int) -> VerifiedExtent:
    """Return the chain's standing. Raises ChainMissing, SchemaError."""
    row = await connection.fetchrow(_SQL["standing"], chain_id)
    require_version(row)
    contradicted = await connection.fetchrow(_SQL["contradicted"], chain_id)
    if row["head"] is None:
        raise ChainMissing(chain_id)
    mark = {name: row[name] for name in VerifiedMark.__struct_fields__}
    known = ("head", "published_id", "partition_ids", "boundary_id", "boundary_seal")
    return VerifiedExtent(
        database_id=UUID(bytes=row["database_id"].bytes),
        **{name: row[name] for name in known},
        mark=None if row["until_id"] is None else VerifiedMark(**mark),
        contradicted=None if contradicted is None else ContradictedMark(**contradicted),
    )


@run_alone
async def set_mark(
    database: str | DatabaseConfig,
    primary: str | DatabaseConfig,
    chain_id: int,
    *,
    after_id: int,
    until_id: int,
    seal: bytes,
    verified_by: str,
    connect_seconds: float = CONNECT_SECONDS,
) -> bool:
    """Move the mark to `until_id` after a verification that began after `after_id`, and found the
    `seal` of the batch that ends at `until_id`.

    It is stored through `database`, or through `primary` if `database` is a standby or any of
    several hosts, of which the first one to answer may be a primary that was replaced. Returns
    whether the mark moved: it does not if rows between the mark and `after_id` were left out, if
    there was nothing new, or if the batch has another seal by now.

    Raises SettingError where `primary` may lead to a standby, ConnectError, RetryError.
    """
    reading, writing = DatabaseConfig.of(database), DatabaseConfig.of(primary).for_writing()
    values = (chain_id, after_id, until_id, verified_by, seal)
    if reading.wants_newest:
        async with connection_to(reading, AUDITOR, connect_seconds) as connection:
            if not await connection.fetchval(_SQL["is_standby"]):
                return await connection.fetchval(_SQL["set_mark"], *values) is not None
    async with connection_to(writing, AUDITOR, connect_seconds) as connection:
        return await connection.fetchval(_SQL["set_mark"], *values) is not None
