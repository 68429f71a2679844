"""`chainctl verify` on what `sequence` and `receive` left behind."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import asyncpg
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Call, Done, Refused, Start

    Verify = Callable[..., Done]

ROWS = 3_000
DELETED = 1_500
SPARK_DEADLINE_SECONDS = 170.0
"""Each call starts a Spark of its own, on a machine that runs other tests beside."""

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def filled(call: Call, module_settings: dict[str, str], chain: int, tmp_path: Path) -> int:
    """A chain with rows 1 to ROWS."""
    path = tmp_path / "o.csv"
    path.write_text("n\n" + "".join(f"{number}\n" for number in range(1, ROWS + 1)))
    done = call("sequence", "--chain", chain, "--input", path, settings=module_settings)
    assert done.code == 0, done
    return chain


@pytest.fixture
def journal(call: Call, module_settings: dict[str, str], filled: int, tmp_path: Path) -> Path:
    """The journal of a receiver of the filled chain."""
    path = tmp_path / "j.jsonl"
    done = call("receive", "--chain", filled, "--output", path, settings=module_settings)
    assert done.code == 0, done
    return path


@pytest.fixture
def verify(start: Start, module_settings: dict[str, str]) -> Verify:
    """Calls `chainctl verify`."""
    from tests.cli.conftest import Done

    def run(*arguments: object, settings: dict[str, str] | None = None) -> Done:
        process = start("verify", *arguments, settings=settings or module_settings)
        out, err = process.communicate(timeout=SPARK_DEADLINE_SECONDS)
        return Done(process.returncode, out, err)

    return run


def delete_row(settings: dict[str, str], chain: int, row_id: int) -> None:
    async def delete() -> None:
        connection = await asyncpg.connect(settings["CHAINCTL_DATABASE"])
        query = "DELETE FROM chain_event WHERE chain_id = $1 AND id = $2"
        await connection.execute(query, chain, row_id)
        await connection.close()

    asyncio.run(delete())


def test_verify_with_a_row_deleted_by_hand_goes_from_0_to_1_and_names_it(
    verify: Verify, module_settings: dict[str, str], filled: int, journal: Path
) -> None:
    sources = ("--chain", filled, "--source", "database", "--source", f"journal:{journal}")
    clean = verify(*sources, "--json")
    assert clean.code == 0, clean
    assert clean.err == ""
    report: dict[str, Any] = json.loads(clean.out)
    assert (report["verdict"], report["head"], report["is_clean"]) == ("complete", ROWS, True)
    assert [source["rows"] for source in report["sources"]] == [ROWS, ROWS]
    assert report["comparisons"][0]["is_equal"]

    delete_row(module_settings, filled, DELETED)
    broken = verify(*sources)
    assert broken.code == 1, broken
    assert f"missing {DELETED}" in broken.out
    assert f"row {DELETED} is too much, database lacks it" in broken.out


def test_verify_with_a_journal_alone_says_that_the_head_is_not_known(
    verify: Verify, filled: int, journal: Path
) -> None:
    done = verify("--chain", filled, "--source", f"journal:{journal}")
    assert done.code == 0, done
    assert "contiguous (head not known)" in done.out


def test_verify_with_a_wrong_password_is_refused_in_one_line_without_it(
    verify: Verify, module_settings: dict[str, str], chain: int
) -> None:
    dsn = module_settings["CHAINCTL_DATABASE"]
    wrong = {"CHAINCTL_DATABASE": dsn.replace(str(urlsplit(dsn).password), "sesame")}
    done = verify("--chain", chain, "--source", "database", settings=wrong)
    assert done.code == 2, done
    assert done.out == ""
    assert done.err.count("\n") == 1, done
    assert "password authentication failed" in done.err
    assert "sesame" not in done.err


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("journal:missing.jsonl", "missing.jsonl"),
        ("topic", "kafka"),
        ("topics:x", "parquet:PATH"),
        ("database", "database"),
    ],
)
def test_verify_with_a_source_that_cannot_be_used_is_refused_at_once(
    refused: Refused, source: str, told: str
) -> None:
    assert told in refused("verify", "--chain", 1, "--source", source)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--follow", "--seals"), "--seals"),
        (("--follow", "--report", "page.html"), "--report"),
        (("--follow", "--since-verified"), "--since-verified"),
        (("--follow", "--local"), "--local"),
        (("--follow", "--head", 5), "--head"),
        (("--checkpoint", "here"), "--checkpoint"),
    ],
)
def test_verify_with_options_that_do_not_go_together_is_refused_naming_one(
    refused: Refused, options: tuple[str | int, ...], told: str
) -> None:
    assert told in refused("verify", "--chain", 1, "--source", "database", *options)


def test_verify_without_a_java_that_can_run_spark_says_what_to_install(
    refused: Refused, tmp_path: Path
) -> None:
    journal = tmp_path / "j.jsonl"
    journal.touch()
    line = refused(
        "verify", "--chain", 1, "--source", f"journal:{journal}", settings={"PATH": str(tmp_path)}
    )
    assert "apt-get install default-jre-headless" in line


def test_verify_local_needs_no_java_and_names_a_row_deleted_by_hand(
    call: Call, module_settings: dict[str, str], filled: int, journal: Path, tmp_path: Path
) -> None:
    without_java = {name: v for name, v in module_settings.items() if name != "JAVA_HOME"}
    without_java["PATH"] = str(tmp_path)
    sources = ("--source", "database", "--source", f"journal:{journal}")
    clean = call("verify", "--local", "--chain", filled, *sources, settings=without_java)
    assert clean.code == 0, clean
    assert f"chain {filled}: complete (start 0, head {ROWS})" in clean.out
    assert clean.err == ""

    delete_row(module_settings, filled, DELETED)
    page = tmp_path / "page.html"
    arguments = ("--local", "--chain", filled, *sources, "--json", "--report", page)
    broken = call("verify", *arguments, settings=without_java)
    assert broken.code == 1, broken
    assert json.loads(broken.out)["counts"] == {"gap": 1, "surplus": 1}
    text = page.read_text(encoding="utf-8")
    assert f"missing {DELETED}" in text
    assert 'class="ids"' in text
    nowhere = tmp_path / "missing" / "page.html"
    refused = call("verify", *arguments[:-1], nowhere, settings=without_java)
    assert refused.code == 2, refused


def test_verify_since_verified_goes_on_at_the_mark_and_moves_it_only_when_all_is_whole(
    call: Call, module_settings: dict[str, str], filled: int, tmp_path: Path
) -> None:
    arguments = ("verify", "--local", "--chain", filled, "--source", "database", "--json")
    since = (*arguments, "--since-verified", "--actor", "eve")
    first = call(*since, settings=module_settings)
    assert (first.code, json.loads(first.out)["start"]) == (0, 0), first
    assert f"the verified mark of chain {filled} is at {ROWS}, by eve" in first.err
    again = call(*since, settings=module_settings)
    assert (again.code, json.loads(again.out)["sources"][0]["rows"]) == (0, 0), again
    assert "nothing new" in again.err

    more = tmp_path / "more.csv"
    more.write_text("n\n" + "".join(f"{number}\n" for number in range(100)))
    call("sequence", "--chain", filled, "--input", more, settings=module_settings)
    head = json.loads(call(*arguments, settings=module_settings).out)["head"]
    delete_row(module_settings, filled, head - 10)
    broken = call(*since, settings=module_settings)
    assert (broken.code, json.loads(broken.out)["start"]) == (1, ROWS), broken
    assert "stays: not everything is whole" in broken.err
    assert json.loads(call(*since, settings=module_settings).out)["start"] == ROWS
    refused = call(*since, "--start", 5, settings=module_settings)
    assert refused.code == 2, refused
