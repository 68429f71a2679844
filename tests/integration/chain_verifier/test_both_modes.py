"""Spark names all that is wrong with a source, the local mode where it breaks first."""

import asyncio
import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from pyspark.sql import DataFrame, SparkSession

from chain_kernel.errors import (
    ChainMissing,
    ConnectError,
    InputError,
    SchemaError,
    SettingError,
    SourceBroken,
)
from chain_kernel.sql import AUDITOR, GAP_READER
from chain_kernel.text import silent
from chain_verifier.config import (
    DatabaseSource,
    JournalSource,
    ParquetSource,
    Source,
    VerifyRequest,
)
from chain_verifier.dataframe.frame import verify_frame
from chain_verifier.dataframe.replay import replay
from chain_verifier.findings import Finding, Kind
from chain_verifier.local.verify import verify_locally
from chain_verifier.report import Report, Verdict
from chain_verifier.spark.own_session import LEAVING_OUT, LEAVING_OUT_OF_HIVE, own_session
from chain_verifier.spark.verify import verify
from tests.lanes import at_night
from tests.stored_pages import execute

from .agreement import verified_by_both
from .dataframe.books import BY_COLUMN
from .parquet_layouts import OTHER_LAYOUTS, write_layout
from .planted_faults import CHAIN_ID, Row, chain_of, head_of, write_journal
from .stored_rows import store

ROWS = chain_of(random.Random(11), 60)
HEAD = head_of(ROWS)


@pytest.fixture
def agreed(spark: SparkSession) -> Callable[..., Report]:
    """Verifies by both modes, and returns the report of Spark once they agree."""

    def run(*sources: Source, **options: Any) -> Report:
        given = {"bucket_bits": 4, "leaf_bits": 3} | options
        request = VerifyRequest(chain_id=CHAIN_ID, sources=sources, **given)
        return verified_by_both(request, spark)

    return run


@pytest.fixture
def journal_of(tmp_path: Path) -> Callable[..., JournalSource]:
    def write(rows: Sequence[Any], name: str = "j", torn: str = "") -> JournalSource:
        return JournalSource(path=str(write_journal(tmp_path / name, rows, torn)))

    return write


def moved(rows: Sequence[Row], index: int, to: int) -> list[Row]:
    rest = [*rows[:index], *rows[index + 1 :]]
    return [*rest[:to], rows[index], *rest[to:]]


def gap(index: int, until: int | None = None) -> dict[str, Any]:
    """The rows from `index` to `until` are missing."""
    last = ROWS[index if until is None else until]
    return {"kind": Kind.GAP, "after_id": ROWS[index].pid, "until_id": last.id}


def late(first: int, last: int, behind: int) -> dict[str, Any]:
    """The rows from `first` to `last` come after a later one."""
    return {
        "kind": Kind.OUT_OF_ORDER, "id": ROWS[first].id, "until_id": ROWS[last].id,
        "after_id": ROWS[behind].id, "count": last - first + 1,
    }  # fmt: skip


def span(first: int, last: int) -> dict[str, Any]:
    """The neighbouring rows from `first` to `last`, as one finding."""
    return {"id": ROWS[first].id, "last_id": ROWS[last].id, "rows": last - first + 1}


def twice(first: int, last: int) -> dict[str, Any]:
    return {"kind": Kind.DUPLICATE, "count": 2} | span(first, last)


def null(index: int, *columns: str, **fields: Any) -> dict[str, Any]:
    ids = {"id": ROWS[index].id, "pid": ROWS[index].pid} | fields
    return {"kind": Kind.NULL, "columns": columns} | ids


def spare(index: int) -> int:
    """A number after a row that is no row: ids rise by two at least."""
    return (ROWS[index].id or 0) + 1


def added(index: int, pid: int | None) -> Row:
    return Row(spare(index), pid, f"added {index}")


class Line:
    """What is in a journal in the place of a row."""

    def __init__(self, text: str) -> None:
        self._text = text

    def line(self) -> str:
        return self._text


LINE = ROWS[30].line()
PLAIN = LINE.replace("}{", "")

Vector = tuple[Sequence[Any], int | None, list[dict[str, Any]]]

VECTORS: dict[str, Vector] = {
    "clean": (ROWS, HEAD, []),
    "head not known": (ROWS[:-5], None, []),
    "nothing": ([], HEAD, [{"kind": Kind.GAP, "after_id": 0, "until_id": HEAD}]),
    "nothing of nothing": ([], 0, []),
    "row and tail missing": (
        [*ROWS[:30], *ROWS[31:-3]],
        HEAD,
        [gap(30), gap(len(ROWS) - 3, len(ROWS) - 1)],
    ),
    "behind the head": (ROWS, ROWS[-4].id, [
        {"kind": Kind.BEYOND_HEAD, "pid": ROWS[-4].id, "until_id": ROWS[-4].id}
        | span(len(ROWS) - 3, len(ROWS) - 1)
    ]),
    "moved to the front": (moved(ROWS, 30, 0), HEAD, [late(0, 29, 30)]),
    "moved, and rows repeated": (
        [*moved(ROWS, 5, 50), ROWS[30], ROWS[31]],
        HEAD,
        [late(5, 5, 50), twice(30, 31)],
    ),
    "backwards": (ROWS[::-1], HEAD, [late(0, len(ROWS) - 2, len(ROWS) - 1)]),
    "a row of another chain": (
        [*ROWS[:7], replace(ROWS[7], chain_id=8), *ROWS[7:]],
        HEAD,
        [{"kind": Kind.FOREIGN_CHAIN, "id": ROWS[7].id, "pid": ROWS[7].pid, "chain_id": 8}],
    ),
    "neighbours without a key, some of another chain, and a hole": (
        [*ROWS[:7], *(replace(row, chain_id=8) for row in ROWS[:5]),
         *(replace(row, key=None) for row in ROWS[7:20]), ROWS[20],
         *(replace(row, key=None) for row in ROWS[21:]), replace(ROWS[9], chain_id=8)],
        HEAD,
        [{"kind": Kind.FOREIGN_CHAIN, "pid": 0, "chain_id": 8} | span(0, 4),
         {"kind": Kind.FOREIGN_CHAIN, "id": ROWS[9].id, "pid": ROWS[9].pid, "chain_id": 8},
         {"kind": Kind.NULL, "pid": ROWS[7].pid, "columns": ("key",)} | span(7, 19),
         {"kind": Kind.NULL, "pid": ROWS[21].pid, "columns": ("key",)} | span(21, len(ROWS) - 1)],
    ),
    "rows that are linked wrongly": (
        [*ROWS[:1], added(0, 0), *ROWS[1:11], added(10, ROWS[9].id), *ROWS[11:21],
         added(20, spare(19)), *ROWS[21:31], added(30, ROWS[40].id), *ROWS[31:]],
        HEAD,
        [{"kind": Kind.SECOND_ROOT, "pid": 0, "ids": (ROWS[0].id, spare(0))},
         {"kind": Kind.FORK, "pid": ROWS[9].id, "ids": (ROWS[10].id, spare(10))},
         {"kind": Kind.ORPHAN, "id": spare(20), "pid": spare(19)},
         {"kind": Kind.PID_NOT_BELOW_ID, "id": spare(30), "pid": ROWS[40].id}],
    ),
    "a row before all others": (
        [*ROWS[:7], Row(-5, -6), *ROWS[7:]],
        HEAD,
        [{"kind": Kind.ORPHAN, "id": -5, "pid": -6},
         {"kind": Kind.OUT_OF_ORDER, "id": -5, "until_id": -5, "after_id": ROWS[6].id, "count": 1}],
    ),
    "a row before all others, at the front": (
        [Row(0, -6), *ROWS], HEAD, [{"kind": Kind.ORPHAN, "id": 0, "pid": -6}],
    ),
    "a field missing": (
        [*ROWS[:30], Line(LINE.replace('"event_time_ns"', '"other"')), *ROWS[31:]],
        HEAD,
        [null(30, "event_time_ns")],
    ),
    "null in ids": (
        [*ROWS[:7], replace(ROWS[7], id=None), *ROWS[8:20], replace(ROWS[20], pid=None),
         *ROWS[21:30], replace(ROWS[30], chain_id=None), *ROWS[31:]],
        HEAD,
        [null(7, "id", id=None), gap(7), null(20, "pid", pid=None), gap(20), null(30, "chain_id"),
         gap(30)],
    ),
}  # fmt: skip


IN_THE_MERGE = (
    "row and tail missing",
    "behind the head",
    "moved, and rows repeated",
    "a row of another chain",
    "rows that are linked wrongly",
    "null in ids",
)
"""One for each finding."""


def expected_of(name: str, source: str) -> list[Finding]:
    return [Finding(source=source, **fields) for fields in VECTORS[name][2]]


@pytest.mark.parametrize(
    "name", [*IN_THE_MERGE, *at_night(*[n for n in VECTORS if n not in IN_THE_MERGE])]
)
def test_modes_with_one_journal_find_what_is_wrong_with_it(
    agreed: Callable[..., Report], journal_of: Callable[..., JournalSource], name: str
) -> None:
    rows, head, faults = VECTORS[name]
    source = journal_of(rows)
    report = agreed(source, head=head)
    assert sorted(report.findings, key=str) == sorted(expected_of(name, source.name), key=str)
    assert report.is_clean is not bool(faults)
    assert report.sources[0].rows == row_count(rows, head)


@pytest.mark.nightly
def test_modes_with_no_row_and_no_known_head_prove_nothing(
    agreed: Callable[..., Report],
    journal_of: Callable[..., JournalSource],
    parquet_of: Callable[[Sequence[Row]], ParquetSource],
) -> None:
    empty, other = journal_of([]), parquet_of([])
    for sources in ((empty,), (journal_of([], "torn", torn=LINE[:40]),), (other,), (empty, other)):
        report = agreed(*sources)
        assert (report.verdict, report.is_clean, report.counts) == (Verdict.UNPROVEN, False, {})
        assert {one.verdict for one in report.sources} == {Verdict.UNPROVEN}
    behind = agreed(journal_of(ROWS, "all"), start=HEAD)
    assert behind.verdict is Verdict.UNPROVEN
    known = agreed(empty, other, head=0)
    assert (known.verdict, known.is_clean) == (Verdict.COMPLETE, True)
    assert agreed(journal_of(ROWS[:1], "one"), empty).verdict is Verdict.BROKEN


def row_count(rows: Sequence[Any], head: int | None) -> int:
    """Rows of the chain up to the head, each as often as it stands."""
    known = [ROWS[30] if isinstance(row, Line) else row for row in rows]
    own = [row for row in known if row.chain_id == CHAIN_ID and row.pid is not None]
    return sum(row.id is not None and (head is None or row.id <= head) for row in own)


@pytest.mark.parametrize("name", ["row and tail missing", *at_night("clean", "null in ids")])
def test_modes_with_parquet_find_what_is_wrong_with_it(
    agreed: Callable[..., Report], parquet_of: Callable[[Sequence[Row]], ParquetSource], name: str
) -> None:
    rows, head, _ = VECTORS[name]
    source = parquet_of(random.Random(1).sample(rows, len(rows)))
    report = agreed(source, head=head)
    assert sorted(report.findings, key=str) == sorted(expected_of(name, source.name), key=str)


@pytest.mark.parametrize("torn", ["{", *at_night(ROWS[-1].line()[:50], ROWS[-1].line())])
def test_modes_with_a_torn_end_leave_it_out(
    agreed: Callable[..., Report], journal_of: Callable[..., JournalSource], torn: str
) -> None:
    """A last line that lacks nothing but its end is a row all the same."""
    is_whole = torn == ROWS[-1].line()
    report = agreed(journal_of(ROWS[:-1], torn=torn), head=ROWS[-1 if is_whole else -2].id)
    assert report.is_clean, report.findings
    note = "the last line is incomplete, and was left out"
    assert report.sources[0].notes == (() if is_whole else (note,))


NO_ROWS = [
    "garbage", "", "[]", "\x00\x01\x02", LINE[:40], LINE + LINE, LINE + "\r", LINE + " ",
    f"{LINE}], [{LINE}", f"{PLAIN} {PLAIN}", f"{PLAIN},{PLAIN}",
    LINE.replace('"id": ', '"id": "x'),
    LINE.replace(f'"id": {ROWS[30].id}', f'"id": "{ROWS[30].id}"'),
    LINE.replace(f'"id": {ROWS[30].id}', f'"id": {2**63}'),
    LINE.replace('"payload": "', '"payload": "*'),
]  # fmt: skip


Mode = Callable[..., Report]


@pytest.fixture(params=["spark", "local"])
def verify_by(request: pytest.FixtureRequest, spark: SparkSession) -> Mode:
    """Verifies sources in one of the modes."""

    def run(*sources: Source, progress: Callable[[str], None] = silent, **options: Any) -> Report:
        asked = VerifyRequest(
            chain_id=options.pop("chain_id", CHAIN_ID), sources=sources, **options
        )
        if request.param == "spark":
            return verify(asked, spark, progress)
        return verify_locally(asked, progress)

    return run


@pytest.mark.parametrize("line", [NO_ROWS[0], *at_night(*NO_ROWS[1:])])
def test_journal_with_a_line_that_is_no_row_is_refused_by_its_number(
    verify_by: Mode, journal_of: Callable[..., JournalSource], line: str
) -> None:
    for rows, number in (([*ROWS[:30], Line(line), *ROWS[31:]], 31), ([*ROWS, Line(line)], 61)):
        source = journal_of(rows)
        with pytest.raises(InputError) as refused:
            verify_by(source)
        assert (refused.value.field, refused.value.line) == (source.name, number)


def columns_in(**changed: list[Any] | None) -> Callable[[Path], Any]:
    """Write one row of Parquet with some columns of another type, or without them."""

    def write(path: Path) -> ParquetSource:
        table = pa.table(
            {name: pa.array([0]).cast(kind) for name, kind in
             (("chain_id", pa.int32()), ("id", pa.int64()), ("pid", pa.int64()),
              ("key", pa.string()), ("event_time_ns", pa.int64()))}
        )  # fmt: skip
        table = table.append_column("payload", [[b"x"]])
        for name, other in changed.items():
            table = table.drop_columns([name])
            table = table if other is None else table.append_column(name, [other])
        pq.write_table(table, path)
        return ParquetSource(path=str(path))

    return write


def mixed(path: Path) -> ParquetSource:
    for name in ("dictionary", "folders"):
        write_layout(name, path, ROWS)
    return ParquetSource(path=str(path))


def written(path: Path, text: str, source: Any) -> Any:
    path.write_text(text)
    return source(path=str(path))


REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "rows of another chain": (
        lambda path: written(path, replace(ROWS[0], chain_id=8).line() + "\n", JournalSource),
        "none of chain 7",
    ),
    "no journal": (lambda path: JournalSource(path=str(path)), "No such file"),
    "a folder": (lambda path: JournalSource(path=str(path.parent)), "it is a folder"),
    "no Parquet": (lambda path: ParquetSource(path=str(path)), "^parquet was "),
    "text as Parquet": (lambda path: written(path, "text", ParquetSource), "^parquet was "),
    "a column missing": (
        columns_in(payload=None), "column payload was not given, expected the type binary",
    ),
    "a column of another type": (
        columns_in(key=[1]), "column key was 'bigint', expected the type string",
    ),
    "folders, and files beside them": (mixed, "not every file is in a folder chain_id=N"),
}  # fmt: skip


@pytest.mark.nightly
@pytest.mark.parametrize("name", REFUSED)
def test_source_that_cannot_be_used_is_refused(verify_by: Mode, tmp_path: Path, name: str) -> None:
    make, shown = REFUSED[name]
    with pytest.raises(InputError, match=shown):
        verify_by(make(tmp_path / "source"))


@pytest.mark.nightly
def test_parquet_of_other_writers_is_read_and_what_breaks_off_is_no_verdict(
    verify_by: Mode, tmp_path: Path
) -> None:
    for name in OTHER_LAYOUTS:
        write_layout(name, tmp_path / name, ROWS)
        report = verify_by(ParquetSource(path=str(tmp_path / name)), head=HEAD)
        assert report.verdict is Verdict.COMPLETE, name
    narrow = tmp_path / "narrow.parquet"
    ids = {"id": pa.array([1, 2], pa.int32()), "pid": pa.array([0, 1], pa.int32())}
    rest = {"chain_id": [7, 7], "key": ["k", "l"], "event_time_ns": [0, 0], "payload": [b"", b""]}
    pq.write_table(pa.table({**ids, **rest}), narrow)
    assert verify_by(ParquetSource(path=str(narrow)), head=2).verdict is Verdict.COMPLETE
    path = tmp_path / "dictionary" / "1.parquet"
    content = bytearray(path.read_bytes())
    content[4 : len(content) // 3] = bytes(len(content) // 3 - 4)
    path.write_bytes(content)
    with pytest.raises(SourceBroken):
        verify_by(ParquetSource(path=str(path.parent)), head=HEAD)


@pytest.mark.nightly
def test_journal_that_grows_while_it_is_read_is_read_as_it_was(
    verify_by: Mode, journal_of: Callable[..., JournalSource]
) -> None:
    source = journal_of(ROWS[:40], torn=ROWS[40].line()[:20])

    def grow(line: str) -> None:
        if line.startswith("checking"):
            journal_of(ROWS)

    report = verify_by(source, progress=grow)
    assert (report.findings, report.sources[0].rows in (40, 41)) == ((), True)


def test_journal_of_many_blocks_is_read_in_order_whatever_its_name(
    agreed: Callable[..., Report],
    journal_of: Callable[..., JournalSource],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("chain_verifier.sources.journal._RANGE_BYTES", 1000)
    for name in ("a [1] {journal}* é%20?.jsonl", "_journal"):
        assert agreed(journal_of(ROWS, name), head=HEAD).is_clean
        report = agreed(journal_of(moved(ROWS, 5, 49), name), head=HEAD)
        assert [one.kind for one in report.findings] == [Kind.OUT_OF_ORDER]


@pytest.fixture
def audit(database: str, role_dsn: Callable[[str], str]) -> DatabaseSource:
    asyncio.run(store(database, ROWS))
    return DatabaseSource(database=role_dsn(AUDITOR))


def test_local_with_pages_of_few_rows_finds_an_id_that_stands_often(
    audit: DatabaseSource, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its primary key a table may hold more pages with one end than come at a time."""
    monkeypatch.setattr("chain_verifier.sources.database._PAGES", 1)
    monkeypatch.setattr("chain_verifier.sources.database._BYTES", 1)
    request = VerifyRequest(chain_id=CHAIN_ID, sources=(audit,))
    assert verify_locally(request).is_clean
    row_id = ROWS[9].id
    again = f"INSERT INTO chain_page SELECT * FROM chain_page WHERE {row_id} = ANY (ids)"  # noqa: S608
    asyncio.run(
        execute(database, "ALTER TABLE chain_page DROP CONSTRAINT chain_page_pkey", *[again] * 2)
    )
    (found,) = verify_locally(request).findings
    assert (found.kind, found.count) == ("duplicate", 4)
    assert (found.id or 0) <= (row_id or 0)


def test_database_that_breaks_off_or_cannot_be_used_is_no_verdict_and_shows_no_password(
    verify_by: Mode, audit: DatabaseSource, database: str, role_dsn: Callable[[str], str]
) -> None:
    def cut_off(line: str) -> None:
        if line == "checking database":
            asyncio.run(execute(database, "ALTER TABLE chain_page RENAME ids TO gone"))

    with pytest.raises(SourceBroken, match="database: could not be read to its end"):
        verify_by(audit, progress=cut_off)
    asyncio.run(execute(database, "ALTER TABLE chain_page RENAME gone TO ids"))
    with pytest.raises(ChainMissing):
        verify_by(audit, chain_id=CHAIN_ID + 1)
    password = str(urlsplit(str(audit.database)).password)
    for dsn, shown in (
        ("postgresql://auditor:sesame@127.0.0.1:1/x", r"127\.0\.0\.1:1"),
        (str(audit.database).replace(password, "sesame"), "password"),
    ):
        with pytest.raises(ConnectError, match=shown) as refused:
            verify_by(DatabaseSource(database=dsn))
        assert "sesame" not in str(refused.value)
    asyncio.run(execute(database, f"REVOKE SELECT ON chain_page FROM {GAP_READER}"))  # noqa: S608
    barred = DatabaseSource(database=role_dsn(GAP_READER))
    member = r"member of auditor \(login gap_reader: .*permission denied"
    with pytest.raises(ConnectError, match=member):
        verify_by(barred)
    asyncio.run(execute(database, "UPDATE schema_version SET version = 99"))
    with pytest.raises(SchemaError, match="99"):
        verify_by(audit)
    asyncio.run(execute(database, "DROP TABLE schema_version"))
    with pytest.raises(SchemaError, match="schema was"):
        verify_by(audit)


OTHER_COLUMNS: dict[str, pa.Array] = {
    "nanoseconds": pa.array([0] * len(ROWS), pa.timestamp("ns")),
    "half": pa.array([1.5] * len(ROWS)).cast(pa.float16()),
    "wide": pa.array([1] * len(ROWS)).cast(pa.decimal256(60)),
    "ID": pa.array(["x"] * len(ROWS)),
}
"""Columns that Spark has no type for, or takes for one of ours."""


def test_path_is_no_pattern_and_other_columns_are_left_alone(
    agreed: Callable[..., Report], tmp_path: Path
) -> None:
    write_layout("views", tmp_path, ROWS)
    half, rest = (pq.read_table(tmp_path / f"{number}.parquet") for number in (0, 1))
    table = pa.concat_tables([half, rest])
    pq.write_table(table, tmp_path / "day1.parquet")
    for name in ("day[1]", "day*", "day?", "day{1,2}", r"day\1"):  # day1, each as a pattern
        source = ParquetSource(path=str(tmp_path / f"{name}.parquet"))
        pq.write_table(pa.concat_tables([table[:25], table[26:]]), source.path)
        report = agreed(source, head=HEAD)
        assert report.findings == (Finding(source=source.name, **gap(25)),), name
    for name, column in OTHER_COLUMNS.items():
        path = tmp_path / f"{name}.parquet"
        pq.write_table(table.append_column(name, column), path)
        assert agreed(ParquetSource(path=str(path)), head=HEAD).verdict is Verdict.COMPLETE, name
    days = tmp_path / "days" / "day=2"
    days.mkdir(parents=True)
    pq.write_table(half, days.parent / "0.parquet")
    narrow = rest.set_column(0, "chain_id", rest["chain_id"].cast(pa.int16()))
    pq.write_table(narrow, days / "1.parquet")
    report = agreed(ParquetSource(path=str(days.parent)), head=HEAD)
    assert report.verdict is Verdict.COMPLETE


def test_null_is_found_and_a_missing_column_is_not_proven_whatever_column_comes_before(
    agreed: Callable[..., Report], verify_by: Mode, tmp_path: Path
) -> None:
    """Spark takes a column's statistics by its place in the schema that is asked for."""
    write_layout("views", tmp_path, ROWS)
    table = pa.concat_tables(pq.read_table(tmp_path / f"{number}.parquet") for number in (0, 1))
    content = table["payload"].to_pylist()
    rows = table.drop_columns(["payload"])
    holed = rows.append_column("committed_at", table["event_time_ns"]).append_column(
        "payload", pa.array([*content[:9], None, *content[10:]], pa.binary())
    )
    pq.write_table(holed, tmp_path / "holed.parquet")
    (found,) = agreed(ParquetSource(path=str(tmp_path / "holed.parquet")), head=HEAD).findings
    assert (found.kind, found.id, found.columns) == (Kind.NULL, ROWS[9].id, ("payload",))
    pq.write_table(rows.append_column("half", OTHER_COLUMNS["half"]), tmp_path / "half.parquet")
    with pytest.raises(InputError, match="column payload was not given"):
        verify_by(ParquetSource(path=str(tmp_path / "half.parquet")))


def test_empty_file_of_parquet_is_refused(verify_by: Mode, tmp_path: Path) -> None:
    """Spark lists a file of 0 bytes and does not read it: what it held is not missed."""
    for name in ("views", "folders"):
        write_layout(name, tmp_path / name, ROWS)
        (last,) = (tmp_path / name).rglob("1.parquet")
        last.with_name("2 é.parquet").write_bytes(b"")
        with pytest.raises(InputError, match=r"^parquet was .*(is empty|0 bytes)"):
            verify_by(ParquetSource(path=str(tmp_path / name)))


def test_files_of_a_writer_are_no_rows_and_a_hidden_name_with_a_value_is_a_folder(
    agreed: Callable[..., Report], tmp_path: Path
) -> None:
    write_layout("views", tmp_path, ROWS)
    schema = pq.read_schema(tmp_path / "0.parquet")
    pq.write_metadata(schema, tmp_path / "_common_metadata")
    pq.write_metadata(schema, tmp_path / "_metadata")
    (tmp_path / "0.parquet._COPYING_").write_bytes((tmp_path / "0.parquet").read_bytes())
    (tmp_path / "_day=2").mkdir()
    (tmp_path / "1.parquet").rename(tmp_path / "_day=2" / "1.parquet")
    report = agreed(ParquetSource(path=str(tmp_path)), head=HEAD)
    assert report.verdict is Verdict.COMPLETE


def test_files_below_a_root_that_is_in_a_folder_of_a_chain_are_all_read(
    agreed: Callable[..., Report], tmp_path: Path
) -> None:
    root = tmp_path / f"chain_id={CHAIN_ID}"
    write_layout("views", root, ROWS)
    for folder in ("old", "day=1"):
        (root / folder).mkdir()
        (root / "1.parquet").rename(root / folder / "1.parquet")
        report = agreed(ParquetSource(path=str(root)), head=HEAD)
        assert report.verdict is Verdict.COMPLETE, folder
        (root / folder / "1.parquet").rename(root / "1.parquet")
    report = agreed(ParquetSource(path=str(root / "1.parquet")))
    assert report.sources[0].rows == len(ROWS) - len(ROWS) // 2


def test_columns_are_those_of_the_files_wherever_they_are(
    agreed: Callable[..., Report], verify_by: Mode, tmp_path: Path
) -> None:
    write_layout("views", tmp_path / "year" / "2024", ROWS)
    assert agreed(ParquetSource(path=str(tmp_path / "year")), head=HEAD).is_clean
    for number, lacking in enumerate(("payload", "key")):
        for below in ("2024", f"{lacking}=A"):
            root = tmp_path / str(number)
            (root / below).mkdir(parents=True)
            for name in ("0.parquet", "1.parquet"):
                table = pq.read_table(tmp_path / "year" / "2024" / name, partitioning=None)
                pq.write_table(table.drop_columns([lacking]), root / below / name)
            with pytest.raises(InputError, match=f"column {lacking} was not given"):
                verify_by(ParquetSource(path=str(root)))
            (root / below).rename(tmp_path / f"{number} {below}")


def require_refused(spark: SparkSession, frame: DataFrame, setting: str) -> None:
    """Require that `frame` is neither verified nor replayed, nor taken for stored states."""
    for judge in (
        verify_frame,
        partial(replay, fold=BY_COLUMN),
        lambda states: replay(spark.range(1, 9), BY_COLUMN, states=states),
    ):
        with pytest.raises(SettingError, match=setting):
            judge(frame)


def test_files_that_a_session_would_leave_out_are_not_proven(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_layout("views", tmp_path, ROWS)
    rest = tmp_path / "1.parquet"
    rest.write_bytes(rest.read_bytes()[:-9])
    asked = VerifyRequest(chain_id=CHAIN_ID, sources=(ParquetSource(path=str(tmp_path)),))
    with own_session(spark) as callers:
        for name in LEAVING_OUT:
            callers.conf.set(name, "true")
        with pytest.raises(SourceBroken, match="not a Parquet file"):
            verify(asked, callers)
        frame = callers.read.parquet(str(tmp_path))
        require_refused(spark, frame, LEAVING_OUT[0])
    with own_session(spark) as callers:
        # As a session has it that was started so: it rules tables of Hive.
        callers.conf.set("spark.sql.legacy.setCommandRejectsSparkCoreConfs", "false")
        for name in LEAVING_OUT_OF_HIVE:
            callers.conf.set(name, "true")
            require_refused(spark, callers.range(1, 9), name)
            callers.conf.set(name, "false")
