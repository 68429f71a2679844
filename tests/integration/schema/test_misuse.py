"""What each role tries with the rights that it has, and may not reach: role by operation.

`test_permissions.py` holds the rights against the document. Here every role goes to the end of its
own: rows, columns and locks that a plain GRANT does not keep from it.
"""

import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final

import asyncpg
import pytest

from chain_kernel.errors import SettingError
from chain_kernel.sql import AUDITOR, GAP_READER, LOGIN_ROLES, RECEIVER_WRITER, load_sql
from chain_kernel.sql import SEQUENCER_WRITER as WRITER
from local_stack import PostgresServer
from matcher_receiver import CheckpointConfig, PostgresCheckpointStore, PostgresHeadReports

from .conftest import Connect

Statements = tuple[str, ...]
MakeLogin = Callable[[str, str], str]

SEQUENCER: Final = load_sql("sequencer", "queries.sql")
RECEIVER: Final = load_sql("matcher_receiver", "queries.sql")
SEAL: Final = b"s" * 32
LAST: Final = 2**63 - 1
NOT_ALLOWED: Final = "42501"

_BATCH = """
INSERT INTO chain_batch
    (chain_id, first_id, last_id, prev_last_id, row_count, epoch, seal, committed_at)
VALUES (1, {first}, {last}, {prev}, 1, {epoch}, decode(repeat('73', 32), 'hex'), now())
"""
_MARK = "INSERT INTO chain_verified ({columns}) {overriding} VALUES ({values})"
_TABLES = """
SELECT relname::text FROM pg_class
 WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
 ORDER BY relname
"""


def batch(first: int, last: int, prev: int | str, epoch: int) -> str:
    return _BATCH.format(first=first, last=last, prev=prev, epoch=epoch)


def mark(
    after: int = 0, until: int = 5, seal: str = "73", overriding: str = "", **forged: str
) -> str:
    """A mark as `auditor` would write it by hand, with `forged` columns beside its own."""
    values = {
        "chain_id": "1",
        "after_id": str(after),
        "until_id": str(until),
        "seal": f"decode(repeat('{seal}', 32), 'hex')",
        "verified_by": "'eve'",
    } | forged
    columns = ", ".join(values)
    return _MARK.format(columns=columns, overriding=overriding, values=", ".join(values.values()))


@pytest.fixture
async def chain(catalog: asyncpg.Connection) -> None:
    """Chain 1 in its third term, with the batches 1 to 5 and 6 to 9, verified up to 5."""
    for statement in (
        "UPDATE chain_head SET epoch = 2",
        batch(1, 5, 0, 2),
        batch(6, 9, 5, 2),
        "UPDATE chain_head SET epoch = 3, nonce = decode(repeat('33', 16), 'hex'), last_id = 9,"
        " published_id = 5",
        "UPDATE chain_lease SET epoch = 3, counter = 7",
        mark(),
    ):
        await catalog.execute(statement)


async def contents(catalog: asyncpg.Connection) -> dict[str, list[Any]]:
    """Every row of every table of ours."""
    tables = [row[0] for row in await catalog.fetch(_TABLES)]
    return {
        table: await catalog.fetch(f"SELECT * FROM {table} AS t ORDER BY t::text")  # noqa: S608
        for table in tables
    }


async def outcome(connection: asyncpg.Connection, statement: str) -> str:
    """Return the code with which the server refused `statement`, or what it did."""
    try:
        return str(await connection.execute(statement))
    except asyncpg.PostgresError as error:
        return str(error.sqlstate)


async def refuse_all(
    connection: asyncpg.Connection, catalog: asyncpg.Connection, statements: Statements
) -> None:
    """Require that each of `statements` is refused for want of a right, and changes nothing."""
    await connection.execute("SET default_transaction_read_only = off")
    before = await contents(catalog)
    outcomes = {statement: await outcome(connection, statement) for statement in statements}
    assert {statement: code for statement, code in outcomes.items() if code != NOT_ALLOWED} == {}
    assert await contents(catalog) == before


_EVERYBODY: Statements = (
    "SELECT lo_creat(-1)",
    "SELECT lo_create(0)",
    "SELECT lo_from_bytea(0, 'hidden')",
    "CREATE TEMPORARY TABLE hidden (x int)",
    "CREATE TEMPORARY SEQUENCE hidden",
    "CREATE SCHEMA hidden",
    "SELECT * FROM chain_partition_lock",
    "SELECT FROM chain_partition_lock FOR UPDATE",
    "SELECT FROM chain_partition_lock FOR KEY SHARE",
    "DO $$ BEGIN LOCK TABLE chain_partition_lock IN ACCESS SHARE MODE; END $$",
    "INSERT INTO chain_partition_lock VALUES (2)",
    "DELETE FROM chain_partition_lock",
    "SELECT chain_page_reclaim(1, 0)",
    "SELECT chain_page_ahead(1)",
    "SELECT setval('chain_verified_mark_id_seq', 1)",
    "SELECT nextval('chain_verified_mark_id_seq')",
    "SELECT nextval('chain_act_act_id_seq')",
    "INSERT INTO chain_act (chain_id, act, actor, reason, detail) VALUES (1, 'a', 'b', 'c', 'd')",
    "ALTER TABLE chain_batch DISABLE ROW LEVEL SECURITY",
    "DROP POLICY read_all ON chain_batch",
    "ALTER TABLE chain_head DISABLE TRIGGER only_forward",
    "DROP TRIGGER epoch_by_one ON chain_head",
    "DO $$ BEGIN LOCK TABLE chain_head IN SHARE MODE; END $$",
    "DO $$ BEGIN LOCK TABLE chain_lease IN SHARE MODE; END $$",
    "DO $$ BEGIN LOCK TABLE chain_batch IN SHARE MODE; END $$",
    "DO $$ BEGIN LOCK TABLE receiver_checkpoint IN SHARE MODE; END $$",
    "DO $$ BEGIN LOCK TABLE receiver_gap IN SHARE MODE; END $$",
    "DO $$ BEGIN LOCK TABLE receiver_halt IN SHARE MODE; END $$",
    "DO $$ BEGIN LOCK TABLE chain_verified IN SHARE MODE; END $$",
)


@pytest.mark.usefixtures("chain")
@pytest.mark.parametrize("role", LOGIN_ROLES)
async def test_no_role_stores_hidden_things_or_takes_the_locks_of_the_owner(
    connect: Connect, catalog: asyncpg.Connection, role: str
) -> None:
    await refuse_all(await connect(role), catalog, _EVERYBODY)
    assert await catalog.fetchval("SELECT count(*) FROM pg_largeobject_metadata") == 0


_ADVISORY = "SELECT pg_advisory_lock(hashtextextended('orderchain partition ' || $1::text, 0))"
_HELD: dict[str, Statements] = {
    GAP_READER: (
        "LOCK TABLE chain_page, chain_batch IN ACCESS SHARE MODE",
        "SELECT count(*) FROM chain_page",
    ),
    RECEIVER_WRITER: (
        "INSERT INTO receiver_checkpoint (chain_id, receiver, head_delivered, batch_last_id, seal,"
        " epoch) VALUES (1, 'm', 5, 5, decode(repeat('73', 32), 'hex'), 2)",
        "INSERT INTO receiver_gap (chain_id, receiver, after_id, until_id, cause, outcome, source,"
        " row_count, found_at, duration)"
        " VALUES (1, 'm', 1, 5, 'frame', 'filled', 'primary', 4, now(), '1 s')",
        "INSERT INTO receiver_halt (chain_id, receiver, at_id, reason, detail)"
        " VALUES (1, 'm', 5, 'r', 'd')",
    ),
    AUDITOR: ("LOCK TABLE chain_page, chain_batch, chain_act IN ACCESS SHARE MODE", mark(5, 9)),
}


@pytest.mark.usefixtures("chain")
@pytest.mark.parametrize("role", _HELD)
async def test_transaction_that_a_role_holds_open_keeps_no_order_out(
    connect: Connect, catalog: asyncpg.Connection, role: str
) -> None:
    holder, writer = await connect(role), await connect(WRITER)
    await holder.execute("SET default_transaction_read_only = off")
    await writer.execute("SET lock_timeout = '1s'")
    nonce = await writer.fetchval("SELECT nonce FROM chain_head")
    async with holder.transaction():
        for chain_id in (1, 2):
            await holder.execute(_ADVISORY, str(chain_id))
        for statement in _HELD[role]:
            await holder.execute(statement)
        await writer.execute("SELECT chain_page_extend(1, 700)")
        async with writer.transaction():
            assert await writer.fetchval(SEQUENCER["lock_head"], 1, 3, nonce) == 1
            await writer.execute("UPDATE chain_head SET last_id = 12")
            await writer.execute(_PAGE, 12)
            await writer.execute(batch(12, 12, 9, 3))
        await catalog.execute("SET lock_timeout = '1s'")
        created = "SELECT chain_create(2, decode(repeat('00', 32), 'hex'), 't.2', 0, 100)"
        assert await catalog.fetchval(created)


_TERM = (
    "INSERT INTO chain_term (chain_id, epoch, nonce, frame_key, owner, after_id, system_identifier,"
    " timeline{more}) VALUES (1, {epoch}, decode(repeat('{nonce}', 16), 'hex'),"
    " decode(repeat('00', 32), 'hex'), 'o', 9, 1, 1{values})"
)


def term(epoch: int, nonce: str = "33", more: str = "", values: str = "") -> str:
    return _TERM.format(epoch=epoch, nonce=nonce, more=more, values=values)


_WRITER: Statements = (
    # A term before it begins, the last one, one of another leader, and one at another time.
    term(4),
    term(LAST),
    term(2),
    term(3, "44"),
    term(3, more=", began_at", values=", '2001-01-01'"),
    # A second root, of this chain or of one that does not exist.
    batch(12, 12, "NULL", 3),
    batch(0, 0, "NULL", 3).replace("(1,", "(2,"),
    # A batch of a term that is over, that was never begun, or of the last one that there can be.
    batch(12, 12, 9, 2),
    batch(12, 12, 9, 4),
    batch(12, 12, 9, LAST),
    "UPDATE chain_head SET epoch = 9223372036854775807",
    "UPDATE chain_head SET epoch = epoch + 2",
    "UPDATE chain_head SET epoch = epoch - 1",
    "UPDATE chain_head SET last_id = 8",
    "UPDATE chain_head SET last_id = -9223372036854775808, published_id = -9223372036854775808",
    "UPDATE chain_lease SET counter = 9223372036854775807",
    "UPDATE chain_lease SET counter = counter + 2",
    "UPDATE chain_lease SET counter = counter - 1",
)


@pytest.mark.usefixtures("chain")
async def test_sequencer_ends_no_chain(connect: Connect, catalog: asyncpg.Connection) -> None:
    writer = await connect(WRITER)
    await refuse_all(writer, catalog, _WRITER)
    assert await outcome(writer, term(3)) == "INSERT 0 1"


@pytest.mark.usefixtures("chain")
async def test_owner_may_put_a_head_right(catalog: asyncpg.Connection) -> None:
    await catalog.execute("UPDATE chain_head SET epoch = 9, last_id = 5, published_id = 0")
    assert await catalog.fetchval("SELECT epoch FROM chain_head") == 9


_PAGE = """
    INSERT INTO chain_page
    VALUES (1, $1::bigint, $1, ARRAY[$1], '{9}', '{k}', '{0}', '{""}')
"""
_RANGES = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'chain_page_1'::regclass"
_EXTEND = "SELECT chain_page_extend(1, $1)"


@pytest.mark.usefixtures("chain")
async def test_sequencer_fills_no_catalog(connect: Connect, catalog: asyncpg.Connection) -> None:
    writer = await connect(WRITER)
    for round_ in range(1, 150):
        # The head is the writer's own number: it makes no room for more.
        await writer.execute("UPDATE chain_head SET last_id = $1", round_ * 10**6)
        await writer.execute(_EXTEND, round_ * 10**6)
    assert await catalog.fetchval(_RANGES) <= 40


@pytest.mark.usefixtures("chain")
async def test_reclaim_drops_no_row(connect: Connect, catalog: asyncpg.Connection) -> None:
    leader, rogue = await connect(WRITER), await connect(WRITER)
    await rogue.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    await rogue.fetch("SELECT count(*) FROM chain_page")
    await leader.execute(_EXTEND, 50_000)
    await leader.execute(_PAGE, 50000)
    for round_ in range(1, 15):
        await rogue.execute(_EXTEND, round_ * 10**6)
    await rogue.execute("COMMIT")
    assert await catalog.fetchval("SELECT count(*) FROM chain_page WHERE last_id = 50000") == 1


_AUDITOR: Statements = (
    mark(5, 9, overriding="OVERRIDING SYSTEM VALUE", mark_id="1000"),
    mark(5, 9, login="'postgres'"),
    mark(5, 9, verified_at="'2001-01-01'"),
    # Seals that never were: another one, that of another batch's end, of no batch, of no chain.
    mark(5, 9, seal="00"),
    mark(5, 8),
    mark(5, 2**62),
    mark(5, 9, chain_id="2"),
    # Rows between the mark before and this one, which were not verified.
    mark(6, 9),
)


@pytest.mark.usefixtures("chain")
async def test_refusal_of_a_head_shows_no_row_with_its_salt(connect: Connect) -> None:
    """The server logs what it answers: a constraint's DETAIL would have every column."""
    writer = await connect(WRITER)
    for statement in (
        "UPDATE chain_head SET published_id = last_id + 1 WHERE chain_id = 1",
        "UPDATE chain_head SET last_seal = '' WHERE chain_id = 1",
    ):
        with pytest.raises(asyncpg.CheckViolationError) as refusal:
            await writer.execute(statement)
        assert refusal.value.detail is None


@pytest.mark.usefixtures("chain")
async def test_auditor_forges_nothing(connect: Connect, catalog: asyncpg.Connection) -> None:
    await refuse_all(await connect(AUDITOR), catalog, _AUDITOR)


_SAVE = (1, "m", 5, 9, 9, SEAL.hex(), 2, None, [], [])
_THEIRS: Statements = (
    "UPDATE receiver_checkpoint SET head_delivered = 0, batch_last_id = 0",
    "UPDATE receiver_checkpoint SET seal = decode(repeat('00', 32), 'hex')",
    "UPDATE receiver_gap SET row_count = 0",
    "SELECT FROM receiver_checkpoint FOR UPDATE",
    "SELECT FROM receiver_gap FOR UPDATE",
)
"""What a login does to the rows of another: they are not there to be changed."""

_FORBIDDEN: Statements = (
    "UPDATE receiver_checkpoint SET login = session_user",
    "UPDATE receiver_checkpoint SET is_report = true",
    "UPDATE receiver_checkpoint SET receiver = 'mine'",
    "DELETE FROM receiver_checkpoint",
    "DELETE FROM receiver_gap",
    "UPDATE receiver_halt SET reason = 'none'",
    "DELETE FROM receiver_halt",
    "INSERT INTO receiver_checkpoint (chain_id, receiver, head_delivered, batch_last_id, seal,"
    " epoch, login) VALUES (1, 'n', 5, 5, decode(repeat('73', 32), 'hex'), 2, 'other')",
    "INSERT INTO receiver_checkpoint (chain_id, receiver, head_delivered, batch_last_id, seal,"
    " epoch) VALUES (1, 'm', 0, 0, decode(repeat('73', 32), 'hex'), 2)"
    " ON CONFLICT (chain_id, receiver) DO UPDATE SET head_delivered = excluded.head_delivered",
    "INSERT INTO receiver_gap (chain_id, receiver, after_id, until_id, cause, outcome, source,"
    " row_count, found_at, duration, login)"
    " VALUES (1, 'n', 7, 8, 'frame', 'filled', 'primary', 4, now(), '1 s', 'other')",
    "INSERT INTO receiver_gap (chain_id, receiver, after_id, until_id, cause, outcome, source,"
    " row_count, found_at, duration)"
    " VALUES (1, 'm', 7, 8, 'frame', 'filled', 'primary', 4, now(), '1 s')",
    "INSERT INTO receiver_halt (chain_id, receiver, at_id, reason, detail)"
    " VALUES (1, 'm', 5, 'r', 'd') ON CONFLICT (chain_id, receiver) DO NOTHING",
    "INSERT INTO receiver_halt (chain_id, receiver, at_id, reason, detail, login)"
    " VALUES (1, 'n', 5, 'r', 'd', 'other')",
)


@pytest.fixture
def make_login(postgres_server: PostgresServer, chain_database: str) -> Iterator[MakeLogin]:
    """Makes a login that is a member of a role of ours; gives its DSN."""
    password, made = secrets.token_hex(8), list[str]()

    def make(name: str, role: str) -> str:
        login = f"{name}_{secrets.token_hex(4)}"
        postgres_server.execute(f"CREATE ROLE {login} LOGIN PASSWORD '{password}' IN ROLE {role}")
        made.append(login)
        address = f"127.0.0.1:{postgres_server.config.port}"
        return f"postgresql://{login}:{password}@{address}/{chain_database}"

    yield make
    postgres_server.execute("".join(f"DROP ROLE {login};" for login in made))


@pytest.fixture
async def services(
    make_login: MakeLogin,
) -> AsyncIterator[tuple[asyncpg.Connection, asyncpg.Connection]]:
    """Two services with logins of their own, both members of `receiver_writer`."""
    opened = [
        await asyncpg.connect(make_login(name, RECEIVER_WRITER))
        for name in ("matching_a", "matching_b")
    ]
    yield opened[0], opened[1]
    for connection in opened:
        await connection.close()


async def leave_rows(connection: asyncpg.Connection) -> None:
    """The checkpoint and the ledger of the receiver `m`, as its store writes them."""
    mark = (0, 5, 5, SEAL.hex(), 2, None, [], [])
    (moved,) = await connection.fetch(RECEIVER["save"], 1, "m", *mark)
    assert moved["head_delivered"] == 5
    await connection.execute(_HELD[RECEIVER_WRITER][1])


@pytest.mark.usefixtures("chain")
async def test_login_neither_moves_nor_halts_nor_erases_the_receiver_of_another(
    services: tuple[asyncpg.Connection, asyncpg.Connection],
    catalog: asyncpg.Connection,
) -> None:
    mine, other = services
    await leave_rows(mine)
    await refuse_all(other, catalog, _FORBIDDEN)
    before = await contents(catalog)
    for statement in _THEIRS:
        assert (await other.execute(statement)).endswith(" 0"), statement
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await other.fetch(RECEIVER["save"], *_SAVE)
    await other.execute(RECEIVER["trim_gaps"], 1, "m", 0)
    assert await contents(catalog) == before
    assert [row["receiver"] for row in await other.fetch("SELECT * FROM receiver_checkpoint")]


@pytest.mark.usefixtures("chain")
async def test_login_goes_on_with_its_own_receiver_and_halts_it(
    services: tuple[asyncpg.Connection, asyncpg.Connection],
    catalog: asyncpg.Connection,
) -> None:
    mine, other = services
    await leave_rows(mine)
    assert await mine.fetch(RECEIVER["save"], *_SAVE)
    await mine.execute(RECEIVER["halt"], 1, "m", 9, "Forked", "two rows")
    await mine.execute(RECEIVER["trim_gaps"], 1, "m", 0)
    assert await catalog.fetchval("SELECT count(*) FROM receiver_gap") == 0
    assert await catalog.fetchval("SELECT reason FROM receiver_halt") == "Forked"
    await other.fetch(RECEIVER["save"], 1, "n", 0, 5, 5, SEAL.hex(), 2, None, [], [])


@pytest.mark.usefixtures("chain")
async def test_store_under_the_name_of_another_login_is_refused_before_it_starts(
    services: tuple[asyncpg.Connection, asyncpg.Connection], make_login: MakeLogin
) -> None:
    await leave_rows(services[0])
    holder = await services[0].fetchval("SELECT session_user::text")
    third = make_login("matching_c", RECEIVER_WRITER)
    config = CheckpointConfig(database=third, chain_id=1, name="m")
    async with PostgresCheckpointStore(config) as store:
        with pytest.raises(SettingError, match=f"the database login {holder} holds it"):
            await store.load()
    async with PostgresHeadReports(config) as reports:
        with pytest.raises(SettingError, match=f"the database login {holder} holds it"):
            await reports.load()
