"""`chainctl seal`: the seal at the head of a chain, to be kept where nobody can reach it later."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from msgspec import Struct

from chainctl.database import SQL, connected, database_id
from chainctl.options import SuggestingGroup, chain_option, json_option, uses_settings
from chainctl.output import data, data_json
from chainctl.running import run_async
from orderchain.errors import ChainMissing
from orderchain.roles import AUDITOR

if TYPE_CHECKING:
    from chainctl.settings import Settings


class SealLine(Struct, frozen=True, kw_only=True):
    """A seal, and what it is the seal of."""

    chain_id: int
    id: int
    """The last row that it covers: the head of the chain; 0 for an empty one."""
    seal: str
    """64 hexadecimal digits."""
    committed_at: str
    """When that row was committed, by the sequencer's clock, in UTC."""
    database_id: str


@click.group(cls=SuggestingGroup)
def command() -> None:
    """Take seals out of the database."""


@command.command()
@chain_option
@json_option
@uses_settings("database", "audit_database", "connect_seconds")
def export(settings: Settings, chain_id: int, as_json: bool) -> None:
    """Print the seal at the head of a chain: ID:SEAL and the time of the commit.

    Kept on paper or in another system, `verify --expect-seal ID:SEAL` shows with it that nothing up
    to there was changed since, even if every later seal was written again.
    """
    line = run_async(_exported(settings, chain_id))
    if as_json:
        data_json(line)
        return
    data(f"{line.id}:{line.seal} {line.committed_at}")


async def _exported(settings: Settings, chain_id: int) -> SealLine:
    async with connected(settings.audit_dsn(), settings.connect_seconds, AUDITOR) as connection:
        its_id = await database_id(connection)
        row = await connection.fetchrow(SQL["head_seal"], chain_id)
    if row is None:
        raise ChainMissing(chain_id)
    return SealLine(
        chain_id=chain_id,
        id=row["last_id"],
        seal=row["seal"].hex(),
        committed_at=f"{row['committed_at']:%Y-%m-%dT%H:%M:%S.%fZ}",
        database_id=str(its_id),
    )
