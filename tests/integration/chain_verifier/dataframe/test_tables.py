"""`verify table`: tables of Spark's catalog, written by anybody."""

import asyncio
import json
import os
import secrets
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from chain_kernel.model import Event
from chainctl.main import main
from tests.builders.stored_chain import StoredChain
from tests.integration.chain_verifier.cluster import spark_environment
from tests.opened import connected
from tests.programs import completed, output_of

NO_LOGS = "org.apache.hadoop.mapred.OutputLogFilter"
"""It leaves out files by their name."""


def test_files_of_ones_own_are_checked_where_they_are(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "trades[1]"
    write(folder / "day=1" / "a b#.parquet", 1, 2, 4)
    checked = ("verify", "table", "--id-column", "seq")
    assert main([*checked, f"parquet:{folder}"]) == 1
    assert "order 3 is missing" in capsys.readouterr().out
    assert main([*checked, "csv:x"]) == 2
    assert "orc:PATH" in capsys.readouterr().err


def write(file: Path, *ids: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"seq": ids}), file)


@pytest.mark.parametrize(
    ("root", "read", "left_out"),
    [
        (".", "b.parquet", "old/a.parquet"),
        (".", "day=1/b.parquet", "a.parquet"),
        ("date=1/o", "day=1/b.parquet", "a.parquet"),
    ],
)
def test_folder_of_which_spark_reads_a_part_is_refused(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    root: str, read: str, left_out: str,
) -> None:  # fmt: skip
    folder = tmp_path / root
    write(folder / read, 1, 2)
    write(folder / left_out, 2)
    assert main(["verify", "table", f"parquet:{folder}", "--id-column", "seq"]) == 2
    assert f"leaves out file://{folder / left_out}" in capsys.readouterr().err


def test_folder_is_no_table_whatever_its_format_is_called(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "a.parquet", 1, 2)
    for name in ("parquet", "`org.apache.spark.sql.parquet`"):
        assert main(["verify", "table", f"{name}.`{tmp_path}`", "--id-column", "seq"]) == 2
        assert "parquet:PATH" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line",
    [
        '{"seq": 2}{"seq": 2}{"seq": 9}', '{"seq": 2} {"seq": 9}', '{"seq": 2},{"seq": 9}',
        '{"seq": 2}]{"seq": 9}', '{"seq": 2} x', '{"seq": 2',
    ],
)  # fmt: skip
def test_line_of_json_of_which_spark_reads_a_part_is_refused(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    (tmp_path / "a.json").write_text(f'{{"seq": 1}}\n{line}\n{{"seq": 3}}\n')
    assert main(["verify", "table", f"json:{tmp_path}", "--id-column", "seq"]) == 2
    error = capsys.readouterr().err
    assert f"a line of file:{tmp_path}/a.json is not one JSON value" in error
    assert error.count("\n") == 1


def test_line_of_json_may_be_anything_that_spark_reads_to_its_end(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (
        '{"seq": 1, "x": {"y": ["}{", NaN]}}', '[{"seq": 2}, {"seq": 3}] ', "", " \t", "{'seq': 4}"
    )  # fmt: skip
    (tmp_path / "a.json").write_text("\r\n".join(lines))
    assert main(["verify", "table", f"json:{tmp_path}", "--id-column", "seq"]) == 0
    assert "4 rows, ids 1 to 4" in capsys.readouterr().out


def test_summary_of_a_writer_is_not_missed(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "a.parquet", 1, 2)
    pq.write_metadata(pq.read_schema(tmp_path / "a.parquet"), tmp_path / "_metadata")
    assert main(["verify", "table", f"parquet:{tmp_path}", "--id-column", "seq"]) == 0
    assert "2 rows, ids 1 to 2" in capsys.readouterr().out


def test_names_of_folders_are_keys_as_they_are_written_and_places_by_their_number(
    spark: SparkSession, tmp_path: Path
) -> None:
    for account in ("01", "1"):
        write(tmp_path / "keys" / f"acct={account}" / "a.parquet", 1, 2)
        write(tmp_path / "a column of a list of files" / f"path={account}" / "a.parquet", 1, 2)
    write(tmp_path / "places" / "hour=2" / "a.parquet", 1, 2)
    write(tmp_path / "places" / "hour=10" / "a.parquet", 3)
    checked = ("verify", "table", "--id-column", "seq")
    assert main([*checked, f"parquet:{tmp_path / 'keys'}", "--key-column", "acct"]) == 0
    listed = tmp_path / "a column of a list of files"
    assert main([*checked, f"parquet:{listed}", "--key-column", "path"]) == 0
    assert main([*checked, f"parquet:{tmp_path / 'places'}", "--order-column", "hour"]) == 0


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("parquet", "ignoreCorruptFiles 'true'", "ignoreCorruptFiles=true"),
        ("parquet", "IGNOREMISSINGFILES 'true'", "IGNOREMISSINGFILES=true"),
        ("parquet", "pathGlobFilter 'a*'", "pathGlobFilter=a*"),
        ("orc", "modifiedAfter '2020-01-01T00:00:00'", "modifiedAfter="),
        ("csv", "mode 'dropMalformed'", "mode=dropMalformed"),
        ("csv", "COMMENT '#', header 'true'", "COMMENT=#"),
        ("csv", "comment ','", "comment=,"),
        ("parquet", "ignoreExtension 'false'", "ignoreExtension=false"),  # of Avro
        ("parquet", f"mapreduce.input.pathFilter.class '{NO_LOGS}'", f"pathFilter.class={NO_LOGS}"),
        ("orc", "orc.skip.corrupt.data 'true'", "orc.skip.corrupt.data=true"),
        ("json", "x 'y'", "json:PATH"),
    ],
)
def test_table_whose_options_leave_rows_out_is_refused(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    kind: str, options: str, words: str,
) -> None:  # fmt: skip
    made = f"USING {kind} OPTIONS ({options}) LOCATION '{tmp_path}'"
    spark.sql(f"CREATE TABLE leaving_out (seq BIGINT) {made}")
    try:
        assert main(["verify", "table", "leaving_out", "--id-column", "seq"]) == 2
    finally:
        spark.sql("DROP TABLE leaving_out")
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_partition_of_the_catalog_whose_folder_is_gone_is_refused(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = f"PARTITIONED BY (account, day) LOCATION '{tmp_path / 'a[1]'}' OPTIONS (comment '')"
    spark.sql(f"CREATE TABLE parted (seq BIGINT, account STRING, day INT) USING csv {made}")
    try:
        rows = "(1, 'a', 1), (1, 'b/''%', 1), (1, NULL, NULL)"
        spark.sql(f"INSERT INTO parted SELECT * FROM VALUES {rows}")  # noqa: S608
        spark.sql("ALTER TABLE parted ADD PARTITION (account = 'is empty', day = 1)")
        checked = ["verify", "table", "parted", "--id-column", "seq", "--key-column", "account"]
        assert main(checked) == 0
        for gone in ("account=is empty", "account=a"):
            (tmp_path / "a[1]" / gone).rename(tmp_path / "aside")
            spark.catalog.refreshTable("parted")
            assert main(checked) == 2
            assert f"{gone}/day=1" in capsys.readouterr().err
            (tmp_path / "aside").rename(tmp_path / "a[1]" / gone)
    finally:
        spark.sql("DROP TABLE parted")


IN_HIVE = """
from pyspark.sql import SparkSession
from chainctl.main import main
builder = SparkSession.builder.config("spark.sql.warehouse.dir", "w")
spark = builder.enableHiveSupport().getOrCreate()
spark.sql("CREATE TABLE flat (seq BIGINT) STORED AS TEXTFILE")
spark.sql("CREATE TABLE parted (seq BIGINT) PARTITIONED BY (day INT) STORED AS TEXTFILE")
for table in ("flat", "parted PARTITION (day = 1)"):
    spark.sql(f"INSERT INTO {table} VALUES (1), (2)")
for table in ("flat", "parted"):
    assert main(["verify", "table", f"{table}", "--id-column", "seq"]) == 0, table
for table in ("flat", "parted PARTITION (day = 2)"):
    spark.sql(f"INSERT INTO {table} VALUES (4)")
for table in ("flat", "parted"):
    assert main(["verify", "table", f"{table}", "--id-column", "seq"]) == 1, table
"""


@pytest.mark.nightly
def test_tables_of_hive_are_checked(tmp_path: Path) -> None:
    output_of(sys.executable, "-c", IN_HIVE, env=spark_environment(os.environ), cwd=tmp_path)


def test_empty_file_is_refused(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.json").write_text('{"seq": 1}')
    (tmp_path / "b.json").touch()
    assert main(["verify", "table", f"json:{tmp_path}", "--id-column", "seq"]) == 2
    assert "b.json: it is empty" in capsys.readouterr().err


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    """Parquet in the catalog: two accounts, one of which lacks a trade and has one twice."""
    name = f"trades_{secrets.token_hex(4)}"
    rows = "(1, 'a'), (2, 'a'), (4, 'a'), (4, 'a'), (7, 'b'), (8, 'b')"
    spark.sql(
        f"CREATE TABLE {name} USING parquet LOCATION '{tmp_path / name}' AS "  # noqa: S608
        f"SELECT * FROM VALUES {rows} AS t (seq, account)"
    )
    yield name
    spark.sql(f"DROP TABLE {name}")


def test_table_is_checked_and_its_findings_are_appended_and_reported(
    spark: SparkSession, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = ("verify", "table", f"{table}", "--id-column", "seq")
    into = ("--findings-table", f"{table}_findings")
    for _ in range(2):
        assert main([*source, "--key-column", "account", *into]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert shown[:3] == [
        "a: order 3 is missing",
        "a: duplicate: id 4 is there 2 times",
        f"table:{table}: 6 rows, ids 1 to 8: 1 duplicate, 1 gap",
    ]
    found = spark.table(f"{table}_findings").orderBy("found_at", "kind").collect()
    spark.sql(f"DROP TABLE {table}_findings")
    assert [(row["source"], row["key"], row["kind"]) for row in found] == [
        (f"table:{table}", "a", kind) for kind in ("duplicate", "gap", "duplicate", "gap")
    ]


def test_whole_table_ends_with_0_and_an_empty_one_with_3(
    spark: SparkSession, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spark.sql(f"CREATE VIEW {table}_b AS SELECT * FROM {table} WHERE account = 'b'")  # noqa: S608
    spark.sql(f"CREATE VIEW {table}_c AS SELECT * FROM {table} WHERE account = 'c'")  # noqa: S608
    assert main(["verify", "table", f"{table}_b", "--id-column", "seq", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["is_clean"] is True
    assert main(["verify", "table", f"{table}_c", "--id-column", "seq"]) == 3
    assert "nothing was read" in capsys.readouterr().out
    spark.sql(f"DROP VIEW {table}_b")
    spark.sql(f"DROP VIEW {table}_c")


def test_column_with_a_dot_is_checked_and_its_own_nulls_are_counted(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "(1, 0), (2, 1), (3, CAST(NULL AS INT))"
    spark.sql(f"CREATE TEMPORARY VIEW dotted AS SELECT * FROM VALUES {rows} AS t (`a.id`, `a.pid`)")  # noqa: S608
    columns = ("--id-column", "a.id", "--pid-column", "a.pid")
    assert main(["verify", "table", "dotted", *columns, "--json"]) == 1
    spark.sql("DROP VIEW dotted")
    report = json.loads(capsys.readouterr().out)
    assert (report["rows_without_id"], report["first_id"], report["last_id"]) == (0, 1, 3)


def test_findings_are_not_appended_to_a_table_that_ends_with_the_command(tmp_path: Path) -> None:
    pq.write_table(pa.table({"seq": [1, 3]}), tmp_path / "trades")
    verify = ("verify", "table", f"parquet.`{tmp_path / 'trades'}`", "--id-column", "seq")
    command = (sys.executable, "-m", "chainctl", *verify, "--findings-table", "found")
    done = completed(*command, env=spark_environment(os.environ))
    assert done.returncode == 2, done
    assert "--findings-table was 'found', expected a table that stays" in done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("nowhere", "--id-column", "seq"), "table:nowhere"),
        (("nowhere",), "--id-column"),
        (("", "--id-column", "seq"), "a table"),
        (("t", "--id-column", "seq", "--chain", "1"), "--chain"),
    ],
)
def test_table_that_cannot_be_checked_is_refused_in_one_line(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], words: str
) -> None:
    assert main(["verify", "table", *options]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("chainctl: ") == 1


HEADS = ("verify", "table", "--id-column", "seq")


def test_lost_head_and_tail_are_seen_where_the_head_is_known(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "trades" / "a.parquet", *range(4, 9))
    checked = (*HEADS, f"parquet:{tmp_path}/trades", "--json")
    assert main([*checked]) == 0
    assert main([*checked, "--head", "8", "--after", "3"]) == 0
    assert main([*checked, "--head", "7", "--after", "3"]) == 0, "rows after it may have come"
    capsys.readouterr()
    assert main([*checked, "--head", "10"]) == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    assert [(each["after_id"], each["until_id"], each["count"]) for each in found] == [
        (0, 3, 3), (8, 10, 2),
    ]  # fmt: skip


@pytest.fixture
def chains(database: str, monkeypatch: pytest.MonkeyPatch) -> list[StoredChain]:
    """Three chains of a few orders."""

    async def make() -> list[StoredChain]:
        async with connected(database) as connection:
            made = [
                await StoredChain.create(connection, number, seed=number) for number in (1, 2, 3)
            ]
            for chain in made:
                await chain.commit(6)
        return made

    monkeypatch.setenv("CHAINCTL_DATABASE", database)
    return asyncio.run(make())


def rows_of(file: Path, chain: StoredChain, events: Sequence[Event]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    number = chain.chain.chain_id
    columns = {"chain": [number] * len(events), "id": [each.id for each in events]}
    pq.write_table(pa.table(columns | {"pid": [each.pid for each in events]}), file)


def test_head_of_a_database_shows_what_a_copy_of_its_chain_lacks(
    spark: SparkSession, chains: list[StoredChain], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    events = chains[0].chain.events
    rows_of(tmp_path / "copy" / "a.parquet", chains[0], events)
    of_database = ("--head-from", "database", "--chain", "1")
    checked = ("verify", "table", f"parquet:{tmp_path}/copy", "--id-column", "id", "--json",
               "--pid-column", "pid", *of_database)  # fmt: skip
    assert main([*checked]) == 0, capsys.readouterr()
    rows_of(tmp_path / "copy" / "a.parquet", chains[0], events[:-2])
    capsys.readouterr()
    assert main([*checked]) == 1
    (found,) = json.loads(capsys.readouterr().out)["findings"]
    assert (found["kind"], found["after_id"], found["until_id"]) == (
        "gap", events[-3].id, events[-1].id,
    )  # fmt: skip


def test_heads_of_a_database_show_the_chain_that_a_copy_lacks(
    spark: SparkSession, chains: list[StoredChain], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    one, two, three = chains
    rows_of(tmp_path / "copy" / "a.parquet", one, one.chain.events)
    rows_of(tmp_path / "copy" / "b.parquet", three, three.chain.events[:-1])
    checked = ("verify", "table", f"parquet:{tmp_path}/copy", "--id-column", "id", "--json",
               "--pid-column", "pid", "--key-column", "chain",
               "--head-from", "database")  # fmt: skip
    assert main([*checked]) == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    gaps = [(each["key"], each["after_id"], each["until_id"]) for each in found]
    assert {each["kind"] for each in found} == {"gap"}
    assert gaps == [
        ("2", 0, two.chain.mark().id),
        ("3", three.chain.events[-2].id, three.chain.mark().id),
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--head", "8", "--head-from", "database"), "none beside --head"),
        (("--head", "8", "--key-column", "k"), "heads of their own"),
        (("--chain", "1"), "--head-from database"),
        (("--head-from", "database"), "the chain whose head"),
        (("--head-from", "database", "--chain", "9"), "chain was 9, expected a created"),
    ],
)
def test_heads_that_do_not_fit_are_refused_in_one_line(
    chains: list[StoredChain], capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...], words: str,
) -> None:  # fmt: skip
    assert main([*HEADS, "parquet:/nowhere", *options]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
