"""`verify replay`: states that services have stored, compared with a replay of the database."""

import asyncio
import json
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
from pyspark.sql import SparkSession

from chain_verifier.config import DatabaseSource
from chain_verifier.dataframe import stored as stored_states
from chain_verifier.dataframe.fold import digest_of
from chain_verifier.dataframe.stored import read_states
from chain_verifier.sources.database import DatabaseRows, Extent, require_whole
from chain_verifier.spark.own_session import own_session
from chainctl.main import main
from tests.builders.stored_chain import StoredChain
from tests.integration.chain_verifier.dataframe.books import PUT_STATE, Book, side_of, start, step
from tests.integration.chain_verifier.planted_faults import CHAIN_ID, chain_of, events_of, id_of
from tests.integration.chain_verifier.stored_rows import archive, store
from tests.opened import connected
from tests.stored_pages import execute

ROWS = chain_of(random.Random(8), 60)
FOLD = "tests.integration.chain_verifier.dataframe.books:BOOKS"
VERIFY = ("verify", "replay", FOLD, "--chain", str(CHAIN_ID))
SERVED = CHAIN_ID + 2


def states_of(wrong_from: int | None = None) -> list[tuple[str, int, bytes]]:
    """Return the state of each side after each tenth order; those of `buy` wrong from one id on."""
    books, states = dict[str, Book](), list[tuple[str, int, bytes]]()
    for at, event in enumerate(events_of(ROWS)):
        side = side_of(event)
        book = books.setdefault(side, start(side))
        step(book, [event])
        if at % 10 == 9 or event.id == wrong_from:
            states += [(name, event.id, digest_of(each)) for name, each in books.items()]
    return [
        (
            name,
            row_id,
            b"w" * 32 if wrong_from and name == "buy" and row_id >= wrong_from else digest,
        )
        for name, row_id, digest in states
    ]


@pytest.fixture
def stored(
    database: str, role_dsn: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[list[tuple[str, int, bytes]]], None]:
    asyncio.run(store(database, ROWS))
    monkeypatch.setenv("CHAINCTL_DATABASE", database)
    monkeypatch.setenv("CHAINCTL_AUDIT_DATABASE", role_dsn("auditor"))

    async def put(states: list[tuple[str, int, bytes]]) -> None:
        async with connected(database) as connection:
            await connection.execute("TRUNCATE receiver_state")
            rows = [(CHAIN_ID, "matching", *state) for state in states]
            rows.append((CHAIN_ID, "it's another", "buy", 1, b"another receiver's"))
            await connection.executemany(PUT_STATE, rows)

    return lambda states: asyncio.run(put(states))


def test_wrong_state_is_named_by_group_and_id(
    spark: SparkSession, stored: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    stored(states_of())
    states = ("--states", "receiver:matching")
    assert main([*VERIFY, *states]) == 0, capsys.readouterr()
    count = len(states_of())
    said = f"every stored state is what its orders give; {count} states compared"
    assert said in capsys.readouterr().out
    buys = [event.id for event in events_of(ROWS) if side_of(event) == "buy"]
    stored(states_of(wrong_from=buys[9]))
    assert main([*VERIFY, *states, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["compared"] == len(states_of(wrong_from=buys[9]))
    (shown,) = report["differences"]
    before = max(row_id for _, row_id, _ in states_of() if row_id < buys[9])
    assert (shown["group"], shown["id"], shown["equal_id"]) == ("buy", buys[9], before)
    assert main([*VERIFY, *states]) == 1
    assert f"state of buy: another one after id {buys[9]}" in capsys.readouterr().out


def test_digests_in_json_are_hex(
    spark: SparkSession, stored: Callable[..., None], capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:  # fmt: skip
    stored([])
    states = tmp_path / "states.json"

    def write(state: Callable[[bytes], str]) -> None:
        rows = [{"group": name, "id": row, "digest": state(d)} for name, row, d in states_of()]
        states.write_text("\n".join(map(json.dumps, rows)))

    write(bytes.hex)
    assert main([*VERIFY, "--states", f"json:{states}"]) == 0, capsys.readouterr()
    write(lambda digest: digest.hex() + "?")
    assert main([*VERIFY, "--states", f"json:{states}"]) == 2
    assert "digest of the states was 'NULL', expected bytes, or hex" in capsys.readouterr().err


@pytest.mark.parametrize(
    "lacks", ["{}", '{"chain_id": null, "group": "", "id": 1, "digest": "00"}']
)
def test_state_of_no_chain_is_refused(
    spark: SparkSession, stored: Callable[..., None], capsys: pytest.CaptureFixture[str],
    tmp_path: Path, lacks: str,
) -> None:  # fmt: skip
    stored([])
    rows = [
        {"chain_id": CHAIN_ID, "group": name, "id": row, "digest": digest.hex()}
        for name, row, digest in states_of()
    ]
    states = tmp_path / "states.json"
    states.write_text("\n".join([*map(json.dumps, rows), lacks]))
    assert main([*VERIFY, "--states", f"json:{states}"]) == 2
    assert "column chain_id of the states was 'NULL'" in capsys.readouterr().err


@pytest.mark.parametrize("below", ["old", "day=1"])
def test_folder_of_states_of_which_spark_reads_a_part_is_refused(
    spark: SparkSession, stored: Callable[..., None], capsys: pytest.CaptureFixture[str],
    tmp_path: Path, below: str,
) -> None:  # fmt: skip
    stored([])
    (tmp_path / below).mkdir()
    rows = [{"group": name, "id": row, "digest": d.hex()} for name, row, d in states_of()]
    for place in ("now.json", f"{below}/x.json"):
        (tmp_path / place).write_text("\n".join(map(json.dumps, rows)))
    assert main([*VERIFY, "--states", f"json:{tmp_path}"]) == 2
    assert "Spark leaves out file:" in capsys.readouterr().err


def test_folder_names_a_group_as_it_is_written(spark: SparkSession, tmp_path: Path) -> None:
    for group in ("01", "1"):
        (tmp_path / f"group={group}").mkdir()
        (tmp_path / f"group={group}" / "a.json").write_text('{"id": 1, "digest": "00"}')
    database = DatabaseSource(database="postgresql://auditor@127.0.0.1:1/x")
    with own_session(spark) as own:
        states = read_states(own, f"json:{tmp_path}", database, CHAIN_ID).collect()
    assert {row["group"] for row in states} == {"01", "1"}


def test_chain_with_archived_rows_is_refused_in_one_line(
    spark: SparkSession, stored: Callable[..., None], database: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    stored(states_of())
    boundary = id_of(ROWS[19])
    asyncio.run(archive(database, boundary))
    assert main([*VERIFY, "--states", "receiver:matching"]) == 2
    assert f"and those up to {boundary} were archived" in capsys.readouterr().err


def test_fold_that_raises_since_rows_were_archived_meanwhile_is_not_blamed(
    spark: SparkSession, stored: Callable[..., None], database: str,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    stored([])
    boundary, heads = id_of(ROWS[19]), list[Extent]()

    def then_archived(rows: DatabaseRows, chain_id: int) -> Extent:
        heads.append(require_whole(rows, chain_id))
        if len(heads) == 2:
            asyncio.run(archive(database, boundary))
        return heads[-1]

    monkeypatch.setattr(stored_states, "require_whole", then_archived)
    states = tmp_path / "states.json"
    states.write_text(json.dumps({"group": "", "id": boundary, "digest": "00"}))
    fold = FOLD.replace("BOOKS", "FROM_FIRST")
    assert main([*VERIFY[:2], fold, *VERIFY[3:], "--states", f"json:{states}"]) == 2
    assert f"and those up to {boundary} were archived" in capsys.readouterr().err


def test_replay_with_nothing_to_compare_says_so_and_ends_with_3(
    spark: SparkSession, stored: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    stored([])
    states = ("--states", "receiver:matching")
    assert main([*VERIFY, *states]) == 3
    assert (
        capsys.readouterr().out
        == f"chain {CHAIN_ID}: nothing was compared: no state of it is stored\n"
    )
    assert main([*VERIFY, *states, "--json"]) == 3
    report = json.loads(capsys.readouterr().out)
    assert (report["compared"], report["differences"]) == (0, [])


def test_name_of_a_receiver_is_a_value_whatever_it_holds(
    spark: SparkSession, stored: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    """The only state that it has is a wrong one."""
    stored([])
    assert main([*VERIFY, "--states", "receiver:it's another", "--json"]) == 1
    (shown,) = json.loads(capsys.readouterr().out)["differences"]
    assert shown["stored"] == b"another receiver's".hex()


@pytest.mark.parametrize("column", ["id", "digest"])
def test_stored_state_that_lacks_a_value_is_refused_naming_the_column(
    spark: SparkSession, stored: Callable[..., None], capsys: pytest.CaptureFixture[str],
    tmp_path: Path, column: str,
) -> None:  # fmt: skip
    stored([])
    rows = [{"group": name, "id": row, "digest": d.hex()} for name, row, d in states_of()]
    states = tmp_path / "states.json"
    states.write_text("\n".join(map(json.dumps, [*rows, rows[0] | {column: None}])))
    assert main([*VERIFY, "--states", f"json:{states}"]) == 2
    error = capsys.readouterr().err
    assert f"column {column} of the states was 'NULL'" in error
    assert error.count("\n") == 1


def test_state_after_the_head_of_a_database_that_lags_is_no_difference(
    spark: SparkSession, stored: Callable[..., None], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    head = id_of(ROWS[-1])
    lines = [
        (name, at, bytearray(digest))
        for name, at, digest in [*states_of(), ("buy", head + 1, b"x")]
    ]
    stored([])
    place = str(tmp_path / "states[1]")
    spark.createDataFrame(lines, "group STRING, id BIGINT, digest BINARY").write.parquet(place)
    assert main([*VERIFY, "--states", f"parquet:{place}"]) == 3
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert f"a state is stored after id {head + 1}, and the database is at {head}" in shown.err


def test_states_that_cannot_be_read_are_refused_and_the_database_is_not_blamed(
    spark: SparkSession, stored: Callable[..., None], database: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    stored(states_of())
    place = tmp_path / "states"
    lines = [(name, at, bytearray(digest)) for name, at, digest in states_of()]
    frame = spark.createDataFrame(lines, "group STRING, id BIGINT, digest BINARY").coalesce(1)
    frame.write.option("compression", "none").parquet(str(place))
    (file,) = place.glob("*.parquet")
    content = bytearray(file.read_bytes())
    content[4:200] = bytes(196)  # the first page, after the magic number
    file.write_bytes(content)
    file.with_name(f".{file.name}.crc").unlink()
    asyncio.run(execute(database, "REVOKE SELECT ON receiver_state FROM auditor"))
    for states in (f"parquet:{place}", "receiver:matching"):
        assert main([*VERIFY, "--states", states]) == 2
        shown = capsys.readouterr()
        assert (shown.out, shown.err.count("\n")) == ("", 1)
        assert f"--states was '{states}', expected a source that can be read (" in shown.err


async def serve(dsn: str, has_begun: Event, is_over: Event) -> None:
    """Commit orders one by one, and store the state after each, as a service that runs."""
    async with connected(dsn) as connection:
        chain = await StoredChain.create(connection, SERVED)
        books = dict[str, Book]()
        while not is_over.wait(0.02):
            (order,) = (await chain.commit(1)).events
            side = side_of(order)
            book = books.setdefault(side, start(side))
            step(book, [order])
            state = (SERVED, "matching", side, order.id, digest_of(book))
            await connection.execute(PUT_STATE, *state)
            has_begun.set()


def test_right_service_that_runs_meanwhile_has_no_differences(
    spark: SparkSession, stored: Callable[..., None], database: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    stored([])
    has_begun, is_over = Event(), Event()
    with ThreadPoolExecutor(1) as threads:
        service = threads.submit(asyncio.run, serve(database, has_begun, is_over))
        service.add_done_callback(lambda _: has_begun.set())  # also where it has failed
        try:
            has_begun.wait()
            code = main([*VERIFY[:-1], str(SERVED), "--states", "receiver:matching"])
        finally:
            is_over.set()
        service.result()
    assert code == 0, capsys.readouterr()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--states", "csv:x"), "parquet:NAME"),
        (("--states", "table:json.`/x`"), "parquet:PATH"),
        (("--states", "receiver:"), "receiver:NAME"),
        ((), "--states"),
        (("--states", "json:x", "--local"), "--local"),
    ],
)
def test_states_that_are_none_are_refused_in_one_line(
    spark: SparkSession, stored: Callable[..., None], capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...], words: str,
) -> None:  # fmt: skip
    assert main([*VERIFY, *options]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("chainctl: ") == 1


@pytest.mark.parametrize("fold", ["books", "no.such.module:F", f"{FOLD}X", "json:dumps"])
def test_fold_that_is_none_is_refused(
    stored: Callable[..., None], capsys: pytest.CaptureFixture[str], fold: str
) -> None:
    assert main([*VERIFY[:2], fold, *VERIFY[3:], "--states", "json:x"]) == 2
    assert fold in capsys.readouterr().err
