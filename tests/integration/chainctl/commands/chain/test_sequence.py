"""Files become orders of a chain: each row once, in its order, whatever happened before."""

import asyncio
import gzip
import json
import lzma
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from local_stack import PostgresServer
from tests.builders.orders import order_file
from tests.command_call import Done
from tests.deadlines import Deadline, deadline
from tests.integration.chainctl.conftest import Call, Ctl, Refused, Start
from tests.lanes import at_night
from tests.opened import connected

Rows = Callable[[], list[dict[str, Any]]]

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.compress,
}


SEPARATORS = {"semicolons": ";", "tabs": "\t", "bars": "|"}


@pytest.fixture
def sequence(ctl: Ctl, chain: int) -> Callable[..., Done]:
    """Calls `chainctl sequence` with a file of this content."""

    def run(path: Path, content: str | bytes | None = None, *options: object) -> Done:
        if content is not None:
            data = content.encode() if isinstance(content, str) else content
            path.write_bytes(COMPRESS.get(path.suffix, bytes)(data))
        return ctl("sequence", "--chain", chain, "--input", path, "--json", *options)

    return run


@pytest.fixture
def rows(ctl: Ctl, chain: int) -> Rows:
    """Reads the whole chain, as `chainctl fill` writes it."""

    def read() -> list[dict[str, Any]]:
        status = ctl.json("status", "--chain", chain)
        out = ctl.done(
            "fill", "--chain", chain, "--after", 0, "--until", status["head_persisted"], "--decode",
            "msgpack",
        )  # fmt: skip
        return [json.loads(line) for line in out.splitlines()]

    return read


def keys(found: list[dict[str, Any]]) -> list[str]:
    return [row["key"] for row in found]


def test_file_is_sequenced_once_however_often_and_however_compressed(
    sequence: Callable[..., Done], rows: Rows, tmp_path: Path, chain: int
) -> None:
    content = "n,px\n" + "".join(f"{number},{number}.50\n" for number in range(1, 1_001))
    first = sequence(tmp_path / "o.csv", content, "--batch-rows", 300)
    assert first.code == 0, first
    summary = json.loads(first.out)
    assert summary.pop("seconds") > 0
    assert summary == {
        "chain": chain,
        "source": "file:o.csv",
        "orders": 1_000,
        "first_id": 1,
        "last_id": 1_000,
        "repeats": 0,
        "rows_before": 0,
    }
    assert "1,000 orders" in first.err
    for suffix in COMPRESS:
        again = sequence(tmp_path / f"o.csv{suffix}", content)
        assert again.code == 0, again
        assert json.loads(again.out)["orders"] == 0
        assert json.loads(again.out)["rows_before"] == 1_000
    found = rows()
    assert keys(found) == [f"o.csv#{number}" for number in range(1, 1_001)]
    assert found[6]["payload"] == {"n": "7", "px": "7.50"}
    assert [row["pid"] for row in found] == [0, *(row["id"] for row in found[:-1])]


def test_file_with_a_bad_row_keeps_the_rows_before_it_and_goes_on_once_fixed(
    sequence: Callable[..., Done], rows: Rows, tmp_path: Path
) -> None:
    times = {number: 1_735_689_600_000 + number for number in range(1, 1_001)}
    good = "n,t_ms\n" + "".join(f"{number},{time}\n" for number, time in times.items())
    path = tmp_path / "o.csv"
    bad = good.replace(f"\n700,{times[700]}\n", "\n700,7oo\n")
    options = ("--time-column", "t_ms", "--batch-rows", 100)
    first = sequence(path, bad, *options)
    assert (first.code, first.out) == (2, "")
    assert first.err == (
        "chainctl: line 701: column 't_ms' was '7oo', expected an integer that fits 64 bits as "
        "nanoseconds (it was read in ms; --time-unit sets another unit); orders added before that: "
        "699\n"
    )
    again = sequence(path, bad, *options)
    assert again.code == 2
    assert "line 701" in again.err
    fixed = sequence(path, good, *options)
    assert fixed.code == 0, fixed
    assert json.loads(fixed.out)["rows_before"] == 699
    assert json.loads(fixed.out)["orders"] == 301
    assert keys(rows()) == [f"o.csv#{number}" for number in range(1, 1_001)]


@pytest.mark.parametrize("suffix", [".gz", *at_night("")])
def test_standard_input_is_the_file_of_its_name(
    sequence: Callable[..., Done], start: Start, rows: Rows, module_settings: dict[str, str],
    chain: int, tmp_path: Path, suffix: str,
) -> None:  # fmt: skip
    path = tmp_path / f"o.csv{suffix}"
    content = "n\n" + "".join(f"{number}\n" for number in range(1, 501))

    def from_standard_input(data: bytes) -> tuple[int, dict[str, Any], str]:
        process: subprocess.Popen[Any] = start(
            "sequence", "--chain", chain, "--input", "-", "--input-name", path.name,
            "--batch-rows", 200, "--json", settings=module_settings, text=False,
            stdin=subprocess.PIPE,
        )  # fmt: skip
        out, err = process.communicate(data)
        return process.returncode, json.loads(out) if out else {}, str(err)

    code, summary, err = from_standard_input(COMPRESS[suffix](content.encode()))
    assert code == 0, err
    assert (summary["source"], summary["orders"]) == ("file:o.csv", 500)
    grown = sequence(path, content + "501\n")
    assert (json.loads(grown.out)["rows_before"], json.loads(grown.out)["orders"]) == (500, 1)
    code, summary, err = from_standard_input(COMPRESS[suffix]((content + "501\n502\n").encode()))
    assert (summary["rows_before"], summary["orders"]) == (501, 1), err
    code, _, err = from_standard_input(COMPRESS[suffix](b"n\n502\n503\n"))
    assert code == 2
    assert "at least the 502 rows" in err
    assert keys(rows()) == [f"o.csv#{number}" for number in range(1, 503)]


def test_standard_input_that_waits_costs_neither_the_lease_nor_a_clean_end(
    start: Start, ctl: Ctl, rows: Rows, head_moved: Callable[[], None],
    module_settings: dict[str, str], chain: int,
) -> None:  # fmt: skip
    process = start(
        "sequence", "--chain", chain, "--input", "-", "--input-name", "o.csv",
        "--batch-rows", 1, "--lease-seconds", "2s", settings=module_settings,
        stdin=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write("n\n1\n2\n")
    process.stdin.flush()
    head_moved()
    wait_for_beats(module_settings["CHAINCTL_DATABASE"], chain, 10)  # two leases
    leader = ctl.json("leader", "--chain", chain)
    assert (leader["leader_state"], leader["epoch"]) == ("leads", 1)
    process.stdin.write("3\n4\n")
    process.stdin.flush()
    wait_for_rows(rows, 3)
    process.send_signal(signal.SIGINT)  # while it waits for more
    assert process.wait() == 130
    assert keys(rows())[:3] == ["o.csv#1", "o.csv#2", "o.csv#3"]


def wait_for_beats(database: str, chain: int, count: int) -> None:
    """Return once the leader of the chain has shown its life `count` more times."""

    async def wait() -> None:
        async with connected(database) as connection:
            query = "SELECT counter FROM chain_lease WHERE chain_id = $1"
            first = await connection.fetchval(query, chain)
            async with deadline():
                while await connection.fetchval(query, chain) < first + count:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)

    asyncio.run(wait())


def wait_for_rows(rows: Rows, count: int) -> None:
    """Return once the chain has so many rows."""
    bound = Deadline()
    while len(rows()) < count:
        assert bound.left() > 0


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--input", "-"), "--input - needs --input-name NAME"),
        (("--input", "-", "--input-name", "a/o.csv"), "--input-name was 'a/o.csv'"),
        (("--input", "-", "--input-name", "orders"), "a name ending .csv"),
        (("--intake-topic", "t", "--input-name", "p.csv"), "--input-name cannot be given with"),
        (("--input", "-", "--input-name", "o.csv"), "header was ''"),
    ],
)
def test_standard_input_without_what_it_needs_is_refused(
    ctl: Ctl, arguments: tuple[str, ...], part: str
) -> None:
    assert part in ctl.refused("sequence", "--chain", 1, *arguments)


def test_file_that_cannot_be_used_leaves_the_chain_to_its_leader(
    ctl: Ctl, chain: int, tmp_path: Path
) -> None:
    (tmp_path / "empty.csv").touch()
    (tmp_path / "header.csv").write_text("a,b\n")
    (tmp_path / "first.csv").write_text("a,b\n1\n")
    (tmp_path / "binary.csv").write_bytes(bytes(range(256)) * 64)
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(b"a\n1\n")[:8])
    (tmp_path / "not.csv.xz").write_text("a\n1\n" * 9)
    (tmp_path / "twice.csv").write_text("a,a\n1,2\n")
    (tmp_path / "bare.csv").write_text("1,B\n2,S\n")
    (tmp_path / "one.json").write_text('[{"a":1}]\n')
    for name, separator in SEPARATORS.items():
        (tmp_path / f"{name}.csv").write_text(f"ms{separator}id{separator}price\n1,5{separator}b\n")
    for name, part in (
        ("missing.csv", "No such file"),
        (".", "it is a folder"),
        ("empty.csv", "it is empty"),
        ("header.csv", "it has none"),
        ("bare.csv", "has the file no header? give --columns a,b,c"),
        ("first.csv", "line 2: number of fields was 1, expected 2"),
        ("binary.csv", "line 1"),
        ("cut.csv.gz", "cut off"),
        ("not.csv.xz", "its content is not"),
        ("twice.csv", "name of column 2 was 'a'"),
        ("one.json", "one JSON object"),
        *(
            (f"{name}.csv", f"is the separator another one? --delimiter {separator!r}")
            for name, separator in SEPARATORS.items()
        ),
    ):
        line = ctl.refused("sequence", "--chain", chain, "--input", tmp_path / name)
        assert part in line, name
    status = ctl.json("status", "--chain", chain)
    assert status["epoch"] == 0
    assert status["intakes"] == []


@pytest.mark.parametrize("name", ["semicolons", *at_night("tabs", "bars")])
def test_fields_are_separated_by_what_the_option_or_the_first_line_names(
    sequence: Callable[..., Done], rows: Rows, tmp_path: Path, name: str
) -> None:
    separator = SEPARATORS[name]
    lines = [["ms", "id", "price"], ["1", "b1", "10,5"], ["2", "b2", "10,6"]]
    content = "".join(separator.join(line) + "\n" for line in lines)
    shown = repr(separator).strip("'")
    assert sequence(tmp_path / "o.csv", content, "--delimiter", shown).code == 0
    assert sequence(tmp_path / "p.csv", f"sep={separator}\n{content}").code == 0
    found = [row["payload"] for row in rows()]
    assert found == [dict(zip(lines[0], line, strict=True)) for line in lines[1:]] * 2


@pytest.mark.merge
def test_file_of_the_same_name_in_another_folder_is_refused_until_it_is_named(
    sequence: Callable[..., Done], rows: Rows, tmp_path: Path
) -> None:
    first, other = (tmp_path / day / "part-00000.csv" for day in ("day=1", "day=2"))
    for path in (first, other):
        path.parent.mkdir()
    assert sequence(first, "n\n1\n2\n3\n4\n5\n").code == 0
    refused = sequence(other, "n\n1\n2\n3\n4\n5\n6\n7\n")
    assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1)
    assert "5 rows" in refused.err
    assert f"{first.parent}; " in refused.err
    assert "--input-name is 'part-00000.csv'" in refused.err
    named = sequence(other, None, "--input-name", "day2.csv")
    assert json.loads(named.out)["orders"] == 7
    assert keys(rows()) == [f"part-00000.csv#{n}" for n in range(1, 6)] + [
        f"day2.csv#{n}" for n in range(1, 8)
    ]


@pytest.mark.parametrize("times", [*at_night(1), 2])
def test_sequence_interrupted_once_or_twice_loses_and_doubles_nothing(
    start: Start, sequence: Callable[..., Done], head_moved: Callable[[], None],
    module_settings: dict[str, str], chain: int, tmp_path: Path, times: int,
) -> None:  # fmt: skip
    path = order_file(tmp_path / "o.csv", 20_000)
    process = start(
        "sequence", "--chain", chain, "--input", path, "--batch-rows", 20,
        settings=module_settings,
    )  # fmt: skip
    head_moved()
    for _ in range(times):
        process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130, err
    assert "Traceback" not in err
    done = sequence(path, None)
    assert json.loads(done.out)["rows_before"] + json.loads(done.out)["orders"] == 20_000


def test_sequence_on_a_database_that_may_lose_rows_is_refused_unless_allowed(
    call: Call, refused: Refused, stack_environment: dict[str, str],
    postgres_server: PostgresServer, database_name: str, free_chain: int, tmp_path: Path,
) -> None:  # fmt: skip
    (tmp_path / "o.csv").write_text("a\n1\n")
    assert call("chain", "create", free_chain, settings=stack_environment).code == 0
    postgres_server.execute(
        "SELECT format('ALTER DATABASE %I SET synchronous_commit = off', current_database()) "
        "\\gexec",
        database=database_name,
    )
    sequence = ("sequence", "--chain", free_chain, "--input", tmp_path / "o.csv")
    assert "synchronous_commit" in refused(*sequence, settings=stack_environment)
    done = call(*sequence, "--unsafe-durability", settings=stack_environment)
    assert done.code == 0, done


def test_sequence_without_kafka_starts_where_that_is_allowed_under_the_name_it_is_given(
    call: Call, refused: Refused, module_settings: dict[str, str], chain: int, tmp_path: Path
) -> None:
    order_file(tmp_path / "o.csv", 2)
    away = {**module_settings, "CHAINCTL_KAFKA": "127.0.0.1:1"}
    sequence = ("sequence", "--chain", chain, "--input", tmp_path / "o.csv", "--connect-seconds", 1)
    assert "kafka was" in refused(*sequence, settings=away)
    optional = {**away, "CHAINCTL_KAFKA_AT_START": "optional"}
    done = call(*sequence, "--owner", "pit-1", "--stop-seconds", "100ms", settings=optional)
    assert done.code == 0, done
    leader = json.loads(call("leader", "--chain", chain, "--json", settings=away).out)
    assert (leader["leader"], leader["terms"][0]["owner"]) == ("pit-1", "pit-1")
    status = json.loads(call("status", "--chain", chain, "--json", settings=away).out)
    assert status["head_published"] == 0 < status["head_persisted"] == status["unpublished_ids"]
    assert status["unpublished_seconds"] > 0


def test_topic_on_one_broker_is_noted_once(sequence: Callable[..., Done], tmp_path: Path) -> None:
    """The servers of the tests have one broker."""
    done = sequence(tmp_path / "o.csv", "n\n1\n", "--log-level", "info")
    assert done.code == 0, done
    (line,) = [line for line in done.err.splitlines() if "one broker's disk may be all" in line]
    assert "(replicas 1, min.insync.replicas 1): receivers read what is lost" in line
