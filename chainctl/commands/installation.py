"""`chainctl doctor`, `config`, `completion`: what would fail, what is set, what shells complete."""

from __future__ import annotations

import os
import shutil
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec import Struct

from chainctl.commands.chain.chains import connected_topics
from chainctl.database import SQL, connected, database_id
from chainctl.exits import ExitCode, error_line
from chainctl.options import (
    Command,
    SuggestingGroup,
    json_option,
    some_chain_option,
    uses_settings,
    uses_sourced_settings,
)
from chainctl.output import data_json, data_text, table, talk
from chainctl.running import run_async
from chainctl.settings import SETTING_NAMES, shown, unknown_variables
from orderchain.errors import OrderchainError
from orderchain.sql import AUDITOR, GAP_READER, SCHEMA_VERSION
from orderchain.text import counted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from chainctl.database import Connection
    from chainctl.settings import Settings, SourcedSettings
    from orderchain.clients.database_config import DatabaseConfig


# -- doctor ---------------------------------------------------------------------------------------

OK: Final = "ok"
WARNING: Final = "warning"
FAILED: Final = "failed"

CLOCK_SECONDS_MAX: Final = 1.0
"""A larger difference between this machine and the database makes times of commits misleading."""

DISK_SHARE_MIN: Final = 0.1
DISK_BYTES_MIN: Final = 2 * 10**9
"""Free space below which a disk of this machine is reported: journals and archives need it."""

REPLICAS_MIN: Final = 3
"""With fewer replicas, one broker that is lost for good can lose frames. The database has them."""

_SAFE: Final = {"fsync": "on", "full_page_writes": "on"}


class DoctorLine(Struct, frozen=True, kw_only=True):
    """One thing that was looked at."""

    what: str
    state: str
    """`ok`, `warning` (it starts, and may hurt later) or `failed` (a start would fail)."""
    found: str
    to_do: str = ""


@click.command(cls=Command)
@some_chain_option
@json_option
@uses_settings("database", "gap_database", "audit_database", "kafka", "connect_seconds")
def doctor(settings: Settings, chain_id: int | None, as_json: bool) -> ExitCode:
    """Check what sequencer, receiver and verifier need: settings, database, roles, schema, topics,
    replication, clock, versions, disk. Nothing is changed.

    Exit code 1 when something would make a start fail.
    """
    checks = run_async(_examine(settings, chain_id))
    if as_json:
        data_json(checks)
    else:
        rows = [(check.state, check.what, check.found, check.to_do) for check in checks]
        table(("state", "what", "found", "to_do"), rows)
    failed = sum(check.state == FAILED for check in checks)
    warnings = sum(check.state == WARNING for check in checks)
    talk(
        f"chainctl: {counted(len(checks), 'check')}, {failed} failed, "
        f"{counted(warnings, 'warning')}"
    )
    return ExitCode.FINDINGS if failed else ExitCode.CLEAN


async def _examine(settings: Settings, chain_id: int | None) -> list[DoctorLine]:
    checks = [_python(), *_disks()]
    topics: list[str] = []
    if settings.database:
        checks += await _guarded(
            "database", partial(_database, settings, chain_id, topics), "see docs/operations.md"
        )
    else:
        checks.append(
            DoctorLine(what="database", state=FAILED, found="not set", to_do="set --database")
        )
    gap_dsns = settings.gap_dsns() if settings.gap_database else ()
    for number, config in enumerate(gap_dsns, 1):
        what = f"gap database {number}"
        checks += await _guarded(what, partial(_reader, settings, config, what), "")
    if settings.kafka:
        checks += await _guarded("kafka", partial(_topics, settings, topics), "see --kafka")
    else:
        checks.append(DoctorLine(what="kafka", state=FAILED, found="not set", to_do="set --kafka"))
    return checks


async def _guarded(
    what: str, look: Callable[[], Awaitable[list[DoctorLine]]], to_do: str
) -> list[DoctorLine]:
    """Return what `look` finds, or one failed check with the reason."""
    try:
        return await look()
    except (OrderchainError, OSError, TimeoutError) as error:
        return [DoctorLine(what=what, state=FAILED, found=error_line(error), to_do=to_do)]


def _python() -> DoctorLine:
    version = ".".join(map(str, sys.version_info[:3]))
    missing = [name for name in ("asyncpg", "aiokafka", "uvloop") if not _is_installed(name)]
    if missing:
        return DoctorLine(
            what="python",
            state=FAILED if missing != ["uvloop"] else WARNING,
            found=f"{version}, without {', '.join(missing)}",
            to_do="pip install 'orderchain[cli]'",
        )
    return DoctorLine(what="python", state=OK, found=version)


def _is_installed(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(name) is not None


def _disks() -> list[DoctorLine]:
    folder = Path.cwd()
    usage = shutil.disk_usage(folder)
    found = f"{usage.free / 1e9:,.1f} GB free of {usage.total / 1e9:,.1f}"
    is_low = usage.free < max(DISK_BYTES_MIN, usage.total * DISK_SHARE_MIN)
    return [
        DoctorLine(
            what=f"disk of {folder}",
            state=WARNING if is_low else OK,
            found=found,
            to_do="free space before journals and archives stop" if is_low else "",
        )
    ]


async def _database(
    settings: Settings, chain_id: int | None, topics: list[str]
) -> list[DoctorLine]:
    """Look at the primary; the topics of its chains are added to `topics`."""
    async with connected(settings.database_dsn(), settings.connect_seconds, AUDITOR) as connection:
        checks = [DoctorLine(what="database", state=OK, found=await _server(connection))]
        its_id = await database_id(connection)
        checks.append(
            DoctorLine(
                what="schema", state=OK, found=f"version {SCHEMA_VERSION}, database {its_id}"
            )
        )
        checks += [await _clock(connection), *await _durability(connection)]
        checks += await _steps_left(connection)
        chains = await connection.fetch(SQL["chain_status"], chain_id)
    if not chains:
        what = "chains" if chain_id is None else f"chain {chain_id}"
        to_do = f"chainctl chain create {chain_id or 'N'}"
        checks.append(DoctorLine(what=what, state=FAILED, found="none", to_do=to_do))
    for chain in chains:
        topics.append(chain["topic"])
        checks.append(_leader(chain))
    return checks


async def _server(connection: Connection) -> str:
    version, encoding = await connection.fetchrow(SQL["server"])
    return f"PostgreSQL {version // 10_000}.{version % 10_000}, {encoding}"


async def _clock(connection: Connection) -> DoctorLine:
    before = time.time()
    there = await connection.fetchval(SQL["clock"])
    # Half the trip: the answer is as old as its way back.
    off = there - (before + time.time()) / 2
    is_off = abs(off) > CLOCK_SECONDS_MAX
    return DoctorLine(
        what="clock",
        state=WARNING if is_off else OK,
        found=f"{off * 1e3:+.0f} ms from the database's",
        to_do="synchronise both machines (NTP)" if is_off else "",
    )


async def _durability(connection: Connection) -> list[DoctorLine]:
    settings = {row["name"]: row["setting"] for row in await connection.fetch(SQL["durability"])}
    unsafe = {name: value for name, value in settings.items() if _SAFE.get(name, value) != value}
    if settings["synchronous_commit"] in {"off", "local"}:
        unsafe["synchronous_commit"] = settings["synchronous_commit"]
    if not unsafe:
        return [DoctorLine(what="durability", state=OK, found="a commit survives a crash")]
    return [
        DoctorLine(
            what="durability",
            state=WARNING if set(unsafe) == {"synchronous_commit"} else FAILED,
            found=", ".join(f"{name} = {value}" for name, value in unsafe.items()),
            to_do="switch it on in postgresql.conf: acknowledged orders would be lost",
        )
    ]


async def _steps_left(connection: Connection) -> list[DoctorLine]:
    return [
        DoctorLine(
            what="schema step", state=WARNING, found=f"not done: {row['step']}", to_do="run it"
        )
        for row in await connection.fetch(SQL["steps"])
        if not row["is_done"]
    ]


def _leader(chain: Any) -> DoctorLine:  # noqa: ANN401 - a record of the driver
    from chainctl.commands.status import leader_state

    state = leader_state(chain)
    is_silent = state == "silent"
    return DoctorLine(
        what=f"leader of chain {chain['chain_id']}",
        state=WARNING if is_silent else OK,
        found=state if not chain["owner"] else f"{state} ({chain['owner']})",
        to_do="start a sequencer, or look why its standby does not lead" if is_silent else "",
    )


async def _reader(settings: Settings, config: str | DatabaseConfig, what: str) -> list[DoctorLine]:
    async with connected(config, settings.connect_seconds, GAP_READER) as connection:
        await database_id(connection)
        found = await _server(connection)
    return [DoctorLine(what=what, state=OK, found=found)]


async def _topics(settings: Settings, names: list[str]) -> list[DoctorLine]:
    kafka = settings.kafka_config()
    checks: list[DoctorLine] = []
    async with connected_topics(kafka, settings.connect_seconds) as topics:
        checks.append(DoctorLine(what="kafka", state=OK, found="answers"))
        for name in names:
            checks += await _guarded(
                f"topic {name}", partial(_topic, topics, name), "chainctl chain create N"
            )
    return checks


async def _topic(topics: Any, name: str) -> list[DoctorLine]:  # noqa: ANN401 - chainctl.commands.chain.chains.Topics
    what = f"topic {name}"
    found = await topics.described(name)
    if not found.is_there:
        return [DoctorLine(what=what, state=FAILED, found="none", to_do="chainctl chain create N")]
    await topics.check(name)
    if found.replicas >= REPLICAS_MIN:
        return [DoctorLine(what=what, state=OK, found=f"{found.replicas} replicas")]
    return [
        DoctorLine(
            what=what,
            state=WARNING,
            found=counted(found.replicas, "replica"),
            to_do=f"raise it to {REPLICAS_MIN}, and min.insync.replicas to 2",
        )
    ]


# -- config ---------------------------------------------------------------------------------------


@click.group(cls=SuggestingGroup)
def config() -> None:
    """What is set, and by what."""


@config.command()
@json_option
@uses_sourced_settings(*(name for name in SETTING_NAMES if name != "log_level"))
def show(sourced: SourcedSettings, as_json: bool) -> None:
    """Show every setting, its value with passwords hidden, and where it came from."""
    rows = [
        (name, shown(name, getattr(sourced.settings, name)), sourced.sources[name])
        for name in SETTING_NAMES
    ]
    for variable in unknown_variables(os.environ):
        talk(f"chainctl: {variable} is set, but is no setting: ignored")
    if as_json:
        data_json({name: {"value": value, "source": source} for name, value, source in rows})
    else:
        table(("setting", "value", "source"), rows)


# -- completion -----------------------------------------------------------------------------------


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script with which a shell completes commands, options and their values.

    For bash, put `eval "$(chainctl completion bash)"` into ~/.bashrc, for zsh the same with zsh
    into ~/.zshrc. For fish, store the script as ~/.config/fish/completions/chainctl.fish.
    """
    from click.shell_completion import get_completion_class

    from chainctl.main import COMPLETION_VARIABLE, PROGRAM, cli

    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"this version of click completes nothing in {shell}")
    data_text(found(cli, {}, PROGRAM, COMPLETION_VARIABLE).source())
