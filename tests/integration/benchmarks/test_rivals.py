"""Small real runs: what is compared must be durable, in order and complete, or it is no rival."""

import asyncio
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks import chains, questions
from benchmarks.chains import Site, connected, make_chain, write_log_files
from benchmarks.load import Arm, Load, Scope, Venue
from benchmarks.processes import End
from benchmarks.rivals import bare
from benchmarks.rivals.engine import Engine
from benchmarks.rivals.rival import NAMES, NotWhole, rival_of
from benchmarks.runs import open_load
from benchmarks.runs.loads import run_load
from benchmarks.runs.open_load import WAYS, find_maximum, measure_floor
from benchmarks.runs.overload import run_overload
from benchmarks.runs.schedule import Job, run_job
from benchmarks.session import Step, read_lines, run_steps, saved_in
from benchmarks.spreads import merged
from chain_kernel.clients.database_config import DatabaseConfig
from chain_kernel.clients.kafka_config import KafkaConfig
from chain_kernel.model import Event
from chain_kernel.sql import AUDITOR, GAP_READER, SEQUENCER_WRITER
from local_stack import KafkaServer, PostgresServer
from local_stack.postgres import SUPERUSER
from tests.deadlines import deadline
from tests.secured_kafka import SecuredKafka
from tests.secured_postgres import SecuredPostgres
from tests.stored_pages import LET_TAMPER


@pytest.fixture
def site(
    database: str,
    role_dsn: Callable[[str], str],
    postgres_server: PostgresServer,
    kafka_server: KafkaServer,
    server_folder: Path,
) -> Site:
    servers = {"postgres": postgres_server, "kafka": kafka_server}
    return Site(
        admin=DatabaseConfig.of(database),
        sequencer=DatabaseConfig.of(role_dsn(SEQUENCER_WRITER)),
        gap_reader=DatabaseConfig.of(role_dsn(GAP_READER)),
        auditor=DatabaseConfig.of(role_dsn(AUDITOR)),
        kafka=KafkaConfig.of(kafka_server.bootstrap),
        directory=str(server_folder),
        process_ids={
            name: server.process.process_id
            for name, server in servers.items()
            if server.process is not None
        },
    )


def small(rival: str = "engine", **settings: object) -> Load:
    return Load(rival=rival, orders=400, batch_rows=100, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("rival", NAMES)
async def test_rival_hands_on_and_stores_every_order_in_its_order(site: Site, rival: str) -> None:
    async with deadline():
        figures = await run_load(site, small(rival))
    assert figures["orders"] == 400
    assert 0 < figures["delivered_per_second"] <= figures["persisted_per_second"]
    assert figures["producer_cpu_seconds"] > 0
    assert figures["postgres_cpu_seconds"] >= 0


@pytest.fixture
def secured_site(secured_postgres: SecuredPostgres, secured_kafka: SecuredKafka) -> Iterator[Site]:
    """Servers that ask for TLS and a login."""
    from tests.secured_kafka import OPERATOR
    from tests.secured_postgres import TRADER

    name = f"test_{secrets.token_hex(8)}"
    secured_postgres.make_database(name)
    owner, service = (secured_postgres.right(user, dbname=name) for user in (SUPERUSER, TRADER))
    yield Site(
        admin=owner,
        sequencer=service,
        gap_reader=service,
        auditor=service,
        kafka=secured_kafka.login(OPERATOR),
    )
    secured_postgres.server.drop_database(name)


@pytest.mark.parametrize("rival", NAMES)
async def test_rival_reaches_servers_that_ask_for_tls_and_a_login(
    secured_site: Site, rival: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    enter = End.__aenter__

    async def note(self: End) -> End:
        await enter(self)
        folder = Path("/proc") / str(self.process.pid)
        seen.extend((folder / file).read_text(errors="replace") for file in ("cmdline", "environ"))
        return self

    monkeypatch.setattr(End, "__aenter__", note)
    async with deadline():
        figures = await run_load(secured_site, small(rival))
    assert figures["delivered_per_second"] > 0
    # Children are configured by their stdin: everybody may read the command line of a process.
    assert len(seen) == 4
    hidden = (secured_site.kafka.sasl_password, secured_site.admin.password)
    assert not [text for text in seen for secret in hidden if secret in text]


@pytest.mark.parametrize("stage", ["persist", "publish"])
@pytest.mark.parametrize("rival", ["bare_pages", "bare_pipe", "engine"])
async def test_rival_without_a_receiver_stores_every_order(
    site: Site, rival: str, stage: str
) -> None:
    async with deadline():
        figures = await run_load(site, small(rival, stage=stage))
    assert figures["persisted_per_second"] > 0
    assert "delivered_per_second" not in figures


@pytest.mark.parametrize("kind", ["client", "random"])
async def test_engine_with_keys_is_proven_all_the_same(site: Site, kind: str) -> None:
    async with deadline():
        figures = await run_load(site, small(key_window_rows=1_000, key_kind=kind))
    assert figures["delivered_per_second"] > 0


TWO_ORDERS = [Event(1, 0, "a", 7, b"x"), Event(2, 1, "b#2", 8, b"")]


async def test_rows_of_the_rival_are_those_of_the_orders(site: Site) -> None:
    await bare.make_partition(site, 9)
    async with connected(site.sequencer) as connection:
        await connection.copy_to_table(
            bare.TABLE,
            source=memoryview(bare.row_bytes(9, TWO_ORDERS)),
            columns=bare.COLUMNS,
            format="binary",
        )
        rows = await connection.fetch("SELECT * FROM bare_event ORDER BY id")
        assert [Event(*row[1:]) for row in rows] == TWO_ORDERS
    await bare.drop_partition(site, 9)


async def test_chain_that_is_grown_before_holds_all_orders(site: Site) -> None:
    async with deadline():
        figures = await run_load(site, small(grow_orders=5_000))
    assert figures["orders"] == 400


TAMPERINGS = {
    "a row is missing": "DELETE FROM chain_event WHERE chain_id = $1 AND id = 250",
    "a payload is another": (
        "UPDATE chain_event SET payload = 'x' WHERE chain_id = $1 AND id = 250"
    ),
    "the last row is missing": (
        "DELETE FROM chain_event WHERE chain_id = $1 AND id = "
        "(SELECT max(id) FROM chain_event WHERE chain_id = $1)"
    ),
    "a link is another": "UPDATE chain_event SET pid = 7 WHERE chain_id = $1 AND id = 250",
}


@pytest.fixture
def tampered(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Lets the owner of the database change a chain between a run and its proof."""
    whole = Engine.stored

    def tamper(statement: str) -> None:
        async def stored(self: Engine, venue: Venue) -> int:
            async with connected(venue.site.admin) as connection:
                await connection.execute(LET_TAMPER)
                await connection.execute(statement, venue.place["chain_id"])
            return await whole(self, venue)

        monkeypatch.setattr(Engine, "stored", stored)

    return tamper


@pytest.mark.parametrize("how", TAMPERINGS)
async def test_run_whose_chain_does_not_verify_has_no_figure(
    site: Site, tampered: Callable[[str], None], tmp_path: Path, how: str
) -> None:
    tampered(TAMPERINGS[how])
    load = small(stage="persist")
    step = Step("keys", Arm(name="tampered", load=load), 0)
    async with deadline():
        failed = await run_steps([step], site, tmp_path, lambda _: None)
    (line,) = read_lines(saved_in(tmp_path, "keys"))
    assert failed == [line]
    assert line.figures is None
    assert line.failure


async def test_proof_of_a_chain_with_other_orders_than_were_sent_is_refused(site: Site) -> None:
    rival = rival_of("engine")
    load = small(stage="persist")
    place = await rival.prepare(site, load)
    with pytest.raises(NotWhole):
        await rival.stored(Venue(site=site, load=load, place=place))


async def test_run_saves_each_line_when_it_ends(site: Site, tmp_path: Path) -> None:
    load = small(stage="persist")
    plan = [Step("keys", Arm(name=name, load=load), 0) for name in ("first", "second", "third")]
    third = asyncio.Event()
    running = asyncio.create_task(
        run_steps(plan, site, tmp_path, lambda step: third.set() if step is plan[2] else None)
    )
    async with deadline():
        await third.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    lines = read_lines(saved_in(tmp_path, "keys"))
    assert [line.arm for line in lines] == ["first", "second"]
    assert all(line.figures for line in lines)


TASKS: dict[str, Any] = {"rival": "engine", "way": "tasks"}


@pytest.mark.parametrize("way", [*WAYS, "tasks"])
async def test_open_load_counts_from_when_an_order_was_due(site: Site, way: str) -> None:
    settings = WAYS.get(way, TASKS)
    async with deadline():
        figures = await run_job(site, Job.of(rate_per_second=1_000.0, seconds=0.4, **settings))
    found = merged([figures["histogram"]])
    assert found["count"] == 400
    assert 0 < found["p50"] <= found["max"]
    acks = merged([figures["ack_histogram"]])
    assert acks["count"] == 400
    assert merged([figures["undisturbed_histogram"]])["count"] <= 400
    assert merged([figures["flush_histogram"]])["count"] > 0
    assert 1 <= figures["batch_rows"] <= figures["orders"]
    assert figures["producer_ms_per_batch"] > 0


async def test_maximum_is_the_highest_rate_at_which_no_queue_grew(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[float] = []

    async def closed(site: Site, load: Load) -> dict[str, float]:
        return {"delivered_per_second": 2_000 / open_load._HIGHEST}

    async def at_most_1200(site: Site, job: Job) -> dict[str, Any]:
        tried.append(job.rate_per_second)
        figures = await run_job(site, job)
        return figures | {"is_growing": job.rate_per_second > 1_200}

    monkeypatch.setattr(open_load, "run_load", closed)
    monkeypatch.setattr(open_load, "run_job", at_most_1200)
    async with deadline():
        found = await find_maximum(site, 0.2, 3)
    assert tried == pytest.approx([1_000, 1_500, 1_250])
    assert found["rate_per_second"] == found["delivered_per_second"] == pytest.approx(1_000)
    assert found["not_sustained_per_second"] == pytest.approx(1_250)
    assert merged([found["histogram"]])["count"] > 0


async def test_log_files_that_the_warm_up_makes_are_used_again(site: Site) -> None:
    look = "SELECT count(*), pg_current_wal_lsn() - '0/0' FROM pg_ls_waldir()"
    async with connected(site.admin) as connection:
        _, begin = await connection.fetchrow(look)
        await write_log_files(site, 128)  # as much as this server keeps
        files, end = await connection.fetchrow(look)
        assert end - begin >= 128 * 2**20
        await connection.execute(chains.SQL["write_log"], 64)
        assert (await connection.fetchrow(look))[0] <= files


async def test_floor_holds_every_call_both_ways(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_load, "FLOOR_TRIES", 20)
    async with deadline():
        floor = await measure_floor(site, 0.2)
    one_by_one = merged([floor["commit_histogram"]]), merged([floor["send_histogram"]])
    assert [found["count"] for found in one_by_one] == [20, 20]
    assert merged([floor["order_histogram"]])["count"] == 20
    from_due = merged([floor["due_commit_histogram"]]), merged([floor["due_send_histogram"]])
    assert [found["count"] for found in from_due] == [40, 40]


async def test_chain_of_a_finished_run_leaves_no_rows_behind(site: Site) -> None:
    async with deadline():
        await run_load(site, small())
    async with connected(site.admin) as connection:
        assert await connection.fetchval("SELECT count(*) FROM chain_event") == 0
        # Nor does it hinder the next.
        assert await make_chain(site)


def small_arm(question: str, name: str, settings: dict[str, Any]) -> Arm:
    (arm,) = [arm for arm in questions.question_of(question).arms(Scope()) if arm.name == name]
    return msgspec.structs.replace(arm, settings={**arm.settings, **settings})


@pytest.mark.parametrize(
    ("question", "name", "settings"),
    [
        ("fill", "100 orders", {"count": 2, "chain_rows": 20_000}),
        ("fill", "10,000 of 100,000 rows, warm", {"count": 1, "chain_rows": 20_000}),
        ("outbox", "row by row", {"messages": 5}),
        ("outbox", "woken", {"messages": 500}),
        ("outbox", "handed over, delay", {"seconds": 1, "rate": 50}),
        ("spark", "Parquet, rows without payloads", {"rows": 20_000}),
        ("spark", "two executors, 10^7 rows", {"rows": 20_000}),
        ("spark", "database", {"rows": 20_000}),
    ],
)
async def test_arm_that_is_no_load_has_figures(
    site: Site, question: str, name: str, settings: dict[str, Any]
) -> None:
    arm = small_arm(question, name, settings)
    async with deadline():
        figures = await questions.question_of(question).run(site, arm, [])
    assert figures
    assert all(figure > 0 for name, figure in figures.items() if name.endswith("seconds"))


async def test_what_an_overload_accepts_is_stored_and_handed_on(site: Site) -> None:
    async with deadline():
        figures = await run_overload(site, 2_000, 0.2)
    assert 0 < figures["accepted"] <= 420
    assert 0 <= figures["refused_share"] < 1
    assert merged([figures["accepted_histogram"]])["count"] == figures["accepted"]
