"""`chainctl doctor`: checks of what a start needs."""

from __future__ import annotations

import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec import Struct

from chain_kernel.errors import ConnectError, OrderchainError, SettingError
from chain_kernel.limits import FRAME_BYTES_MIN
from chain_kernel.speed import implementation
from chain_kernel.sql import AUDITOR, GAP_READER, LOGIN_ROLES, OWNER, SCHEMA_VERSION
from chain_kernel.text import counted, not_installed, reason_of
from chain_kernel.version import installed_version
from chainctl.database import SQL, connected_to, database_id, primary_id
from chainctl.event_loop import run_async
from chainctl.exits import ExitCode, error_line
from chainctl.late_commits import look_for_late_commits
from chainctl.options import (
    Command,
    json_option,
    some_chain_option,
    sourced_settings,
    uses_settings,
)
from chainctl.output import talk
from chainctl.settings import SETTING_NAMES, checked_dsn, is_secret, unknown_variables
from chainctl.topics import TOPIC_SETTINGS, connected_topics
from chainctl.views import (
    ChainLine,
    GapLine,
    ReceiverLine,
    lines_of,
    read_chains,
    read_receivers,
    write,
)

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from chain_kernel.clients.kafka_config import KafkaConfig
    from chainctl.database import Connection
    from chainctl.settings import Settings, SourcedSettings
    from chainctl.topics import Topics

OK: Final = "ok"
WARNING: Final = "warning"
FAILED: Final = "failed"

CLOCK_SECONDS_MAX: Final = 1.0
"""A larger difference between this machine and the database makes times of commits misleading."""

QUEUE_SHARE_MAX: Final = 0.5
"""A queue of notifications that is fuller makes the server itself warn."""

GAPS_EXAMINED: Final = 100
"""So many open gaps are looked at, the last ones: each receiver has one or two."""

_DISK_FULL: Final = "53100"
_MAY_NOT_WRITE: Final = {"42501", "25006"}
"""Codes of PostgreSQL: no privilege, and a transaction or a server that is read-only."""

_SAFE: Final = {"fsync": "on", "full_page_writes": "on"}


class DoctorLine(Struct, frozen=True):
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
    """Check what sequencer, receiver and verifier need: settings, database, login and roles,
    schema, replication, clock, disk, what makes commits late, chains, topics, versions. Nothing is
    changed, but each topic gets one record without a value, which readers pass over.

    Exit code 1 when something would make a start fail.
    """
    checks = run_async(_examine(settings, chain_id))
    write(("state", "what", "found", "to_do"), checks, as_json=as_json)
    failed = sum(check.state == FAILED for check in checks)
    warnings = sum(check.state == WARNING for check in checks)
    talk(
        f"chainctl: {counted(len(checks), 'check')}, {failed} failed, "
        f"{counted(warnings, 'warning')}"
    )
    return ExitCode.FINDINGS if failed else ExitCode.CLEAN


async def _examine(settings: Settings, chain_id: int | None) -> list[DoctorLine]:
    checks = [_python(), *_settings(sourced_settings())]
    topics: list[str] = []
    primary = await _guarded("database", _database(settings), "see docs/operations.md")
    checks += primary
    checks += await _guarded("hosts", look_at_hosts(settings), "see docs/failover-drill.md")
    if primary[0].state == OK:
        checks += await _guarded("schema", _schema(settings), "chainctl schema apply")
        needs = "set --audit-database: a login with the auditor's rights"
        checks += await _guarded("chains", _chains(settings, chain_id, topics), needs)
    for number, database in enumerate(settings.gap_database, 1):
        what = f"gap database {number}"
        checks += await _guarded(what, _other(settings, database, GAP_READER, what), "")
    if settings.audit_database:
        what, database = "audit database", settings.audit_database
        checks += await _guarded(what, _other(settings, database, AUDITOR, what), "")
    if settings.kafka:
        checks += await _guarded("kafka", _topics(settings, topics), "see --kafka")
    elif topics:
        found = f"not set, and {counted(len(topics), 'chain')} may be published"
        checks.append(_warning("kafka", found, "--kafka, unless the leaders have none"))
    else:
        checks.append(_ok("kafka", "not set: receivers are notified through the database"))
    return checks


async def _guarded(
    what: str, look: Coroutine[Any, Any, list[DoctorLine]], to_do: str
) -> list[DoctorLine]:
    """Return what `look` finds, or one failed check with the reason."""
    try:
        return await look
    except (OrderchainError, OSError, TimeoutError) as error:
        return [_failed(what, error_line(error), to_do)]


def _ok(what: str, found: str) -> DoctorLine:
    return DoctorLine(what, OK, found)


def _warning(what: str, found: str, to_do: str) -> DoctorLine:
    return DoctorLine(what, WARNING, found, to_do)


def _failed(what: str, found: str, to_do: str) -> DoctorLine:
    return DoctorLine(what, FAILED, found, to_do)


# This machine.


def _python() -> DoctorLine:
    number = ".".join(map(str, sys.version_info[:3]))
    version = f"{number}, orderchain {installed_version()}, hot functions in {implementation()}"
    missing = [
        name for name in ("asyncpg", "aiokafka", "cramjam", "uvloop") if find_spec(name) is None
    ]
    if not missing:
        return _ok("python", version)
    judge = _warning if {"uvloop", "cramjam"}.issuperset(missing) else _failed
    return judge("python", version, not_installed(", ".join(missing), "cli"))


def _settings(sourced: SourcedSettings) -> list[DoctorLine]:
    """Look at the settings, their file, and variables that look like settings."""
    from chainctl.commands.chain.sequence import judge

    checks = [
        _warning("settings", f"{name} is no setting", "correct its name, or remove it")
        for name in unknown_variables(os.environ)
    ]
    try:
        judge(sourced.settings)
    except SettingError as error:
        checks.append(_failed("settings", error_line(error), "chainctl config show"))
    path = sourced.config_path
    if path is not None:
        of_file = [name for name in SETTING_NAMES if sourced.sources[name] == path]
        secrets = {name for name in of_file if is_secret(name)}
        if secrets and Path(path).stat().st_mode & 0o007:
            found = f"others can read {path}, which may hold a password"
            checks.append(_warning("settings", found, f"chmod 600 {path}"))
        else:
            checks.append(_ok("settings", f"{counted(len(of_file), 'setting')} of {path}"))
    return checks


# The database.


async def _database(settings: Settings) -> list[DoctorLine]:
    """Look at the primary, and at the login, as any login can."""
    async with connected_to(
        settings.database_dsn(), settings.connect_seconds, AUDITOR
    ) as connection:
        return [
            _ok("database", await _server(connection)),
            *await _login(connection),
            await _clock(connection),
            *await _durability(connection),
            await look_at_replication(connection),
            await look_at_notifications(connection),
            await _room(connection),
            *(
                DoctorLine(late.what, WARNING if late.to_do else OK, late.found, late.to_do)
                for late in await look_for_late_commits(connection)
            ),
        ]


async def look_at_hosts(settings: Settings) -> list[DoctorLine]:
    """Ask each of several hosts what it is: of two primaries one was replaced, and came back."""
    from chain_kernel.clients.database_config import DatabaseConfig
    from chain_kernel.clients.postgres import primaries  # late: it takes long

    config = DatabaseConfig.of(settings.database_dsn()).for_writing()
    hosts = await primaries(
        config, application_name="chainctl doctor", within_seconds=settings.connect_seconds
    )
    if len(hosts) == 1:
        return []
    leading = sorted((each.timeline, name) for name, each in hosts.items() if each is not None)
    found = ", ".join(f"{name} (timeline {timeline})" for timeline, name in leading)
    if len(leading) == 1:
        return [_ok("hosts", f"one primary of {len(hosts)}: {found}")]
    if not leading:
        return [_failed("hosts", "no primary", "promote one, or start it")]
    twins = len({timeline for timeline, _ in leading}) < len(leading)
    which = "that lacks orders (two were promoted)" if twins else "on the lower timeline"
    to_do = f"end the one {which}, and make it a standby again"
    return [_failed("hosts", f"{len(leading)} say that they are the primary: {found}", to_do)]


async def _server(connection: Connection) -> str:
    version, encoding = await connection.fetchrow(SQL["server"])
    return f"PostgreSQL {version // 10_000}.{version % 10_000}, {encoding}"


async def _login(connection: Connection) -> list[DoctorLine]:
    found = await connection.fetchrow(SQL["login"], [*LOGIN_ROLES, OWNER])
    checks = []
    if found["is_standby"]:
        to_do = "set --database to the primary, or add target_session_attrs=read-write"
        checks.append(_failed("database", "a standby, which takes no orders", to_do))
    if found["missing"]:
        missing = ", ".join(found["missing"])
        checks.append(_failed("roles", f"missing: {missing}", "chainctl grants print | psql"))
    name, roles = found["login"], ", ".join(found["roles"])
    if found["is_superuser"]:
        to_do = "give each service a login of its own (docs/permissions.md)"
        checks.append(_warning("login", f"{name}, a superuser", to_do))
    elif roles:
        checks.append(_ok("login", f"{name}, with the rights of {roles}"))
    else:
        to_do = f"GRANT {LOGIN_ROLES[0]} TO {name}, or the role of what it runs"
        checks.append(_failed("login", f"{name}, with the rights of none of our roles", to_do))
    return checks


async def _schema(settings: Settings) -> list[DoctorLine]:
    """Look at the tables; needs one of our roles."""
    from chainctl.schema.parts import (
        PARTS,
        is_lacking,
        numbers_below,
        read_facts,
        schema_differences,
        shipped_facts,
    )

    async with connected_to(
        settings.database_dsn(), settings.connect_seconds, AUDITOR
    ) as connection:
        its_id = await database_id(connection)
        facts = await read_facts(connection, PARTS["chain"])
        numbers = await numbers_below(connection, PARTS["chain"])
        steps = await connection.fetch(SQL["steps"])
    found = schema_differences(facts, shipped_facts(PARTS["chain"]))
    what = f"version {SCHEMA_VERSION}, database {its_id}"
    checks = [_ok("schema", what)]
    if found:
        lacking = [difference for difference in found if is_lacking(difference)]
        first = (lacking or found)[0]
        text = f"{what}; {counted(len(found), 'difference')} from what was shipped: {first}"
        made = _failed if lacking else _warning
        checks = [made("schema", text, "chainctl schema check")]
    checks += [_failed("numbers", what, remedy) for what, remedy in numbers]
    return checks + [
        _warning("schema step", f"not done: {row['step']}", "run it")
        for row in steps
        if not row["is_done"]
    ]


async def _clock(connection: Connection) -> DoctorLine:
    before = time.time()
    there = await connection.fetchval(SQL["clock"])
    # Half the trip: the answer is as old as its way back.
    off = there - (before + time.time()) / 2
    found = f"{off * 1e3:+.0f} ms from the database's"
    if abs(off) > CLOCK_SECONDS_MAX:
        return _warning("clock", found, "synchronise both machines (NTP)")
    return _ok("clock", found)


async def _durability(connection: Connection) -> list[DoctorLine]:
    from chain_kernel.clients.session import is_durable  # late: it takes long

    settings = {row["name"]: row["setting"] for row in await connection.fetch(SQL["durability"])}
    unsafe = {name: value for name, value in settings.items() if _SAFE.get(name, value) != value}
    if not is_durable(settings["synchronous_commit"]):
        unsafe["synchronous_commit"] = settings["synchronous_commit"]
    if not unsafe:
        return [_ok("durability", "a commit survives a crash")]
    found = ", ".join(f"{name} = {value}" for name, value in unsafe.items())
    to_do = "switch it on in postgresql.conf: acknowledged orders would be lost"
    return [_failed("durability", found, to_do)]


async def look_at_replication(connection: Connection) -> DoctorLine:
    """Look whether the standbys for which commits wait are there; some logins cannot see which."""
    found = await connection.fetchrow(SQL["replication"])
    standbys, wanted = counted(found["standbys"], "standby", "standbys"), found["wanted"]
    if not wanted:
        return _ok("replication", f"{standbys}, and commits wait for none")
    text = f"commits wait for {wanted}; {standbys}"
    if found["synchronous"] + found["hidden"] > 0:
        return _ok("replication", text)
    to_do = "start a standby of that name, or change synchronous_standby_names"
    return _failed("replication", f"{text}, none of which is synchronous: no commit ends", to_do)


async def look_at_notifications(connection: Connection) -> DoctorLine:
    """Look how full the cluster's queue of notifications is: a full one fails who notifies."""
    found = await connection.fetchrow(SQL["notifications"])
    text = f"{found['used']:.0%} of the queue is used"
    if found["used"] < QUEUE_SHARE_MAX:
        return _ok("notifications", text)
    to_do = "end the oldest transaction of a session that listens (pg_stat_activity)"
    if found["stuck"]:
        to_do += f", or the sessions whose process takes none: {', '.join(found['stuck'])}"
    return _warning("notifications", text, to_do)


async def _room(connection: Connection) -> DoctorLine:
    """Write a little, and take it back: a client cannot ask how full the server's disk is."""
    from chain_kernel.clients.postgres_errors import (
        DRIVER_ERRORS,
        sqlstate_of,  # late: it takes long
    )

    what, transaction = "disk of the database", connection.transaction()
    await transaction.start()
    try:
        await connection.execute(SQL["room"])
    except DRIVER_ERRORS as error:
        if sqlstate_of(error) == _DISK_FULL:
            return _failed(what, reason_of(error), "make room (docs/runbooks/disk-full.md)")
        if sqlstate_of(error) in _MAY_NOT_WRITE:
            return _ok(what, f"not looked at: {reason_of(error)}")
        raise
    finally:
        await transaction.rollback()
    return _ok(what, "it has room")


async def _chains(settings: Settings, chain_id: int | None, topics: list[str]) -> list[DoctorLine]:
    """Look at chains, leaders and receivers; the topics of the chains are added to `topics`."""
    async with connected_to(settings.audit_dsn(), settings.connect_seconds, AUDITOR) as connection:
        chains = await read_chains(connection, chain_id)
        gaps = await connection.fetch(SQL["gaps"], chain_id, None, True, None, GAPS_EXAMINED)
        receivers = await read_receivers(connection, chain_id)
        marks = await connection.fetch(SQL["contradicted_marks"], chain_id)
    if not chains:
        what = "chains" if chain_id is None else f"chain {chain_id}"
        return [_failed(what, "none", f"chainctl chain create {chain_id or 'N'}")]
    topics += [chain.topic for chain in chains if chain.is_published]
    checks = [line for chain in chains for line in _chain(chain)]
    checks += [line for receiver in receivers for line in _receiver(receiver)]
    for gap in lines_of(GapLine, gaps):
        if gap.outcome == "missing":
            what = f"receiver {gap.receiver} of chain {gap.chain}"
            found = f"rows after {gap.after_id} up to {gap.until_id} were missing in the database"
            to_do = f"verify the chain, then chainctl repair --chain {gap.chain}, and start it"
            checks.append(_failed(what, found, to_do))
    for mark in marks:
        what = f"verified mark of chain {mark['chain_id']}"
        found = f"rows up to {mark['until_id']} are not those that were verified"
        checks.append(_failed(what, found, _verify_by_seals(mark["chain_id"])))
    return checks


def _chain(chain: ChainLine) -> Iterator[DoctorLine]:
    what, life = f"leader of chain {chain.chain}", chain.leader_life
    found = life if not chain.leader else f"{chain.leader}: {life}"
    if chain.leader_state == "silent":
        yield _warning(what, found, "start a sequencer, or look why its standby does not lead")
    else:
        yield _ok(what, found)
    if chain.is_late:
        rows = counted(chain.unpublished_rows, "row")
        found = f"{rows} wait to be published, for {chain.unpublished_seconds:.1f} s"
        yield _warning(f"orders of chain {chain.chain}", found, "docs/runbooks/lagging-kafka.md")


def _receiver(line: ReceiverLine) -> Iterator[DoctorLine]:
    what = f"receiver {line.receiver} of chain {line.chain}"
    if line.state == "halted":
        to_do = f"verify the chain, then chainctl unhalt {line.receiver} --chain {line.chain}"
        yield _failed(what, f"has halted: {line.halted}", to_do)
    elif line.state == "contradicted":
        found = f"the database contradicts its checkpoint: {line.agrees}"
        yield _failed(what, found, _verify_by_seals(line.chain))


def _verify_by_seals(chain_id: int) -> str:
    return f"chainctl verify --chain {chain_id} --source database --seals --expect-seals DIR"


async def _other(settings: Settings, database: str, role: str, what: str) -> list[DoctorLine]:
    """Look at a database other than the primary's address, and at the login there."""
    dsn = checked_dsn(what, database, "its setting")
    async with connected_to(dsn, settings.connect_seconds, role) as connection:
        its_id = await database_id(connection)
        login = await connection.fetchrow(SQL["login"], [role])
        server = await _server(connection)
    if await primary_id(settings) not in (None, its_id):
        return [_failed(what, f"another database: {its_id}", "name --database, or its standby")]
    if not login["roles"]:
        to_do = f"GRANT {role} TO {login['login']}"
        return [_failed(what, f"{login['login']} has not the rights of {role}", to_do)]
    is_standby = ", a standby" if login["is_standby"] else ""
    return [_ok(what, f"{server}{is_standby}, as {login['login']}")]


# Kafka.


async def _topics(settings: Settings, names: list[str]) -> list[DoctorLine]:
    kafka = settings.kafka_config()
    checks = [await _kafka(kafka, settings.connect_seconds)]
    if checks[0].state == FAILED:
        return checks
    fit: list[str] = []
    async with connected_topics(kafka, settings.connect_seconds) as topics:
        for name in names:
            found = await _guarded(f"topic {name}", _topic(topics, name), "chainctl chain create N")
            fit += [name for check in found if check.state != FAILED]
            checks += found
    if fit:
        checks += await _guarded("records", _records(kafka, fit), "see --kafka")
    return checks


async def _records(config: KafkaConfig, names: list[str]) -> list[DoctorLine]:
    """Send a record to each topic: some brokers answer every question, and take no record."""
    from chain_kernel.clients.topics import try_topics

    refusals = {name: why for name, why in (await try_topics(config, names)).items() if why}
    acknowledged = len(names) - len(refusals)
    checks = [_ok("records", f"{counted(acknowledged, 'topic')} acknowledged one")]
    return [*(checks if acknowledged else ()), *map(_refused_record, refusals.items())]


def _refused_record(refusal: tuple[str, OrderchainError]) -> DoctorLine:
    name, why = refusal
    what = f"records of topic {name}"
    if isinstance(why, ConnectError):  # the right of the leader's login alone
        return _warning(what, f"not tried: {why}", "run doctor with the sequencer's login")
    return _failed(what, str(why), "docs/runbooks/lagging-kafka.md")


async def _kafka(config: KafkaConfig, seconds: float) -> DoctorLine:
    """Look at the version of every broker: the oldest decides what clients can count on."""
    from chain_kernel.clients.kafka_errors import connecting, old_brokers

    async with connecting(config, seconds):
        old = await old_brokers(config)
    if not old:
        return _ok("kafka", "3.7 or newer")
    found = f"older than 3.7: {', '.join(old)}"
    return _failed("kafka", found, "upgrade these brokers: Kafka 3.7 or newer is needed")


async def _topic(topics: Topics, name: str) -> list[DoctorLine]:
    from chain_kernel.clients.topics import certain_copies

    what = f"topic {name}"
    found = await topics.described(name)
    if not found.is_there:
        return [_failed(what, "none", "chainctl chain create N")]
    await topics.check(name)
    copies = certain_copies(found)
    minimum = found.settings.get("min.insync.replicas", "1")
    text = f"{counted(found.replicas, 'replica')}, min.insync.replicas {minimum}"
    if copies == 0:
        text = f"{text}: no record is ever acknowledged"
        return [_failed(what, text, "lower min.insync.replicas")]
    limit = int(found.settings["max.message.bytes"])
    if limit < FRAME_BYTES_MIN:
        to_do = f"raise max.message.bytes to {TOPIC_SETTINGS['max.message.bytes']}"
        return [_warning(what, f"{text}, max.message.bytes {limit}: not every order fits", to_do)]
    if copies == 1:
        return [_warning(what, text, "3 replicas and min.insync.replicas=2 outlive a broker")]
    return [_ok(what, text)]
