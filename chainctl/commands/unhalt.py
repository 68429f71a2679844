"""`chainctl unhalt`: lifts the halt of a receiver that the primary had contradicted."""

from __future__ import annotations

import getpass
import platform
from typing import TYPE_CHECKING, Final

import click
from msgspec import Struct

from chainctl.database import SQL, connected, database_id
from chainctl.options import chain_option, json_option, uses_settings
from chainctl.output import data_json, talk
from chainctl.running import run_async
from orderchain.errors import ChainMissing, SettingError
from orderchain.roles import OWNER

if TYPE_CHECKING:
    from chainctl.settings import Settings

TEXT_CHARACTERS_MAX: Final = 1_000
"""Bound of a reason or an actor: a sentence for a later reader, not a document."""


class Lifted(Struct, frozen=True, kw_only=True):
    """What `unhalt` did."""

    chain: int
    receiver: str
    act_id: int
    """The row of chain_act that records it."""
    was: str
    """Why the receiver had halted, and where."""


@click.command()
@chain_option
@click.option("--name", required=True, metavar="NAME", help="The receiver's name.")
@click.option("--reason", required=True, metavar="TEXT", help="Why; it is stored for good.")
@click.option("--actor", metavar="TEXT", help="Who does this.  [default: user@host]")
@json_option
@uses_settings("database", "connect_seconds")
def command(
    settings: Settings, chain_id: int, name: str, reason: str, actor: str | None, as_json: bool
) -> None:
    """Let a halted receiver start again.

    It starts at its checkpoint; where the database still contradicts that, it halts again. Nothing
    is skipped. The act is stored with actor, reason and time. Needs the owner's rights.
    """
    actor = _text("--actor", f"{_user()}@{platform.node()}" if actor is None else actor)
    done = run_async(_unhalt(settings, chain_id, name, _text("--reason", reason), actor))
    talk(f"chainctl: receiver {done.receiver!r} of chain {done.chain} may start again ({done.was})")
    if as_json:
        data_json(done)


async def _unhalt(settings: Settings, chain_id: int, name: str, reason: str, actor: str) -> Lifted:
    async with connected(settings.database_dsn(), settings.connect_seconds, OWNER) as connection:
        await database_id(connection)
        if await connection.fetchrow(SQL["chain"], chain_id) is None:
            raise ChainMissing(chain_id)
        # One statement: the halt is gone exactly when the act is stored.
        row = await connection.fetchrow(SQL["unhalt"], chain_id, name, actor, reason)
    if row is None:
        raise SettingError("--name", name, f"a halted receiver of chain {chain_id}")
    return Lifted(chain=chain_id, receiver=name, act_id=row["act_id"], was=row["detail"])


def _text(flag: str, text: str) -> str:
    """Return `text` without its outer blanks. Raises SettingError unless it is a short text."""
    stripped = text.strip()
    if not 0 < len(stripped) <= TEXT_CHARACTERS_MAX or not stripped.isprintable():
        expected = f"1 to {TEXT_CHARACTERS_MAX} printable characters"
        raise SettingError(flag, stripped[:50], expected)
    return stripped


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an account without a name
        return "unknown"
