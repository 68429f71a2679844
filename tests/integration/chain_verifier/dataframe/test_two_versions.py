"""`verify replay --candidate`: two versions of a fold over a chain, with Spark and without."""

import asyncio
import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

import orderchain.spark
from chain_kernel.errors import InputError, SettingError
from chain_verifier.config import DatabaseSource
from chain_verifier.dataframe.fold import digest_of
from chain_verifier.dataframe.loading import load_fold
from chain_verifier.local.two_versions import compare_versions
from chain_verifier.sources.database import DatabaseRows, PageRange
from chainctl.main import main
from tests.integration.chain_verifier.conftest import frame_of
from tests.integration.chain_verifier.dataframe.books import (
    BOOKS,
    PUT_STATE,
    SECOND,
    Book,
    is_odd,
    second_step,
    side_of,
    start,
    step,
)
from tests.integration.chain_verifier.planted_faults import CHAIN_ID, chain_of, events_of, id_of
from tests.integration.chain_verifier.stored_rows import archive, store
from tests.opened import connected
from tests.stored_pages import execute

ROWS = chain_of(random.Random(9), 300)
EVENTS = events_of(ROWS)
BOOKS_MODULE = "tests.integration.chain_verifier.dataframe.books"
VERIFY = ("verify", "replay", f"{BOOKS_MODULE}:BOOKS", "--chain", str(CHAIN_ID))
SECOND_NAME = f"{BOOKS_MODULE}:SECOND"
BAD_GROUPS = [
    ("BY_NUMBER", f"group of the order {EVENTS[0].id} was [012], expected a text"),
    ("BY_SYMBOL", f"group of the orders {EVENTS[0].id} to .* has no attribute 'symbol'"),
]


def naive() -> Iterator[dict[str, Any]]:
    """Yield the first order of each side after which the two versions differ, one at a time."""
    for side in {side_of(event): None for event in EVENTS}:
        orders = [event for event in EVENTS if side_of(event) == side]
        one, other, before = start(side), start(side), 0
        for at, order in enumerate(orders, 1):
            step(one, [order])
            second_step(other, [order])
            if one != other:
                yield {
                    "group": side,
                    "id": order.id,
                    "equal_id": before,
                    "rows": at,
                    "part": "state",
                    "digest": digest_of(one).hex(),
                    "candidate_digest": digest_of(other).hex(),
                    "fields": [{"field": "rows", "value": str(at), "candidate": str(at + 1)}],
                    "more": 0,
                    "error": "",
                }
                break
            before = order.id


FIRST = sorted(naive(), key=lambda each: each["id"])


@pytest.fixture
def chain(database: str, role_dsn: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> str:
    asyncio.run(store(database, ROWS))
    monkeypatch.setenv("CHAINCTL_DATABASE", database)
    monkeypatch.setenv("CHAINCTL_AUDIT_DATABASE", role_dsn("auditor"))
    return database


@pytest.mark.parametrize("options", [(), ("--compared-rows", "1"), ("--compared-rows", "7")])
def test_first_order_of_each_group_is_named_without_spark(
    chain: str, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    local = (*VERIFY, "--candidate", SECOND_NAME, "--local", *options)
    assert main([*local, "--json"]) == 1, capsys.readouterr()
    assert json.loads(capsys.readouterr().out) == {
        "chain": CHAIN_ID, "candidate": SECOND_NAME, "groups": 3, "divergences": FIRST,
    }  # fmt: skip
    assert main([*local]) == 1
    first = FIRST[0]
    assert capsys.readouterr().out.splitlines()[:2] == [
        f"{first['group']}: the candidate gives another state at id {first['id']}, order "
        f"{first['rows']} of it; the same after {first['equal_id']}",
        f"    rows: {first['rows']}, candidate {first['rows'] + 1}",
    ]


def test_versions_that_give_the_same_end_with_0(
    chain: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*VERIFY, "--candidate", f"{BOOKS_MODULE}:SAME", "--local"]) == 0
    assert (
        capsys.readouterr().out == f"chain {CHAIN_ID}: the candidate gives the same in 3 groups\n"
    )


def test_candidate_that_raises_is_refused_naming_id_and_group(
    chain: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*VERIFY, "--candidate", f"{BOOKS_MODULE}:FAILING", "--local"]) == 2
    shown = capsys.readouterr()
    order = next(event for event in EVENTS if is_odd(event))
    assert shown.out == ""
    assert shown.err == (
        f"chainctl: error of the candidate at id {order.id} of group '{side_of(order)}' was "
        "'ValueError: an odd order', expected none\n"
    )


@pytest.mark.parametrize("options", [("--local",), ()])
def test_candidate_whose_steps_for_older_payloads_give_another_group_is_refused(
    spark: SparkSession, chain: str, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    verify = (*VERIFY[:2], f"{BOOKS_MODULE}:LATEST", *VERIFY[3:])
    assert main([*verify, "--candidate", f"{BOOKS_MODULE}:LONGER", *options]) == 0
    capsys.readouterr()
    assert main([*verify, "--candidate", f"{BOOKS_MODULE}:MOVING", *options]) == 2
    first = EVENTS[0]
    moved = ("buy", "sell", "cancel")[(len(first.payload) + 1) % 3]
    assert capsys.readouterr().err == (
        f"chainctl: group of the order {first.id} by the candidate was '{moved}', "
        f"expected '{side_of(first)}', as by the fold\n"
    )


def test_chain_without_orders_is_no_comparison(
    database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(store(database, []))
    monkeypatch.setenv("CHAINCTL_DATABASE", database)
    assert main([*VERIFY, "--candidate", SECOND_NAME, "--local"]) == 3
    shown = capsys.readouterr().out
    assert shown == f"chain {CHAIN_ID}: no candidate was compared: no orders\n"


@pytest.mark.parametrize(("name", "words"), BAD_GROUPS)
def test_group_that_is_no_text_or_raises_is_refused_without_spark(
    chain: str, name: str, words: str
) -> None:
    fold = load_fold(f"{BOOKS_MODULE}:{name}")
    candidate = msgspec.structs.replace(fold, step=second_step)
    with pytest.raises(InputError, match=words):
        compare_versions(DatabaseSource(database=chain), CHAIN_ID, fold, candidate)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "--states was not given, expected the stored states, or --candidate"),
        (("--local",), "--candidate"),
        (("--states", "json:x", "--compared-rows", "1"), "--candidate"),
        (("--candidate", VERIFY[2], "--local"), "expected another fold"),
        (("--candidate", f"{BOOKS_MODULE}:BY_COLUMN", "--local"), "side_of: one function for both"),
        (("--candidate", "no.such:FOLD", "--local"), "no.such:FOLD"),
        (("--candidate", "", "--local"), "MODULE:FOLD was '', expected a fold"),
        (("--candidate", "", "--states", "json:x"), "MODULE:FOLD was '', expected a fold"),
        (("--candidate", SECOND_NAME, "--local", "--states", "json:x"), "--states"),
        (("--candidate", SECOND_NAME, "--local", "--master", "local[1]"), "--master"),
        (("--candidate", SECOND_NAME, "--compared-rows", "0"), "--compared-rows"),
    ],
)
def test_options_that_do_not_fit_are_refused_in_one_line(
    chain: str, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], words: str
) -> None:
    assert main([*VERIFY, *options]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("chainctl: ") == 1


def test_chain_with_archived_rows_is_refused_without_spark(
    chain: str, capsys: pytest.CaptureFixture[str]
) -> None:
    boundary = id_of(ROWS[19])
    asyncio.run(archive(chain, boundary))
    assert main([*VERIFY, "--candidate", SECOND_NAME, "--local"]) == 2
    assert f"and those up to {boundary} were archived" in capsys.readouterr().err


@pytest.mark.parametrize("last", [19, len(ROWS) - 1])
def test_rows_that_are_archived_meanwhile_are_named_as_such_without_spark(
    chain: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    boundary, ranges = id_of(ROWS[last]), DatabaseRows.ranges

    def after_archiving(rows: DatabaseRows) -> list[PageRange]:
        asyncio.run(archive(chain, boundary))
        return ranges(rows)

    monkeypatch.setattr(DatabaseRows, "ranges", after_archiving)
    assert main([*VERIFY, "--candidate", SECOND_NAME, "--local"]) == 2
    assert f"and those up to {boundary} were archived" in capsys.readouterr().err


@pytest.mark.parametrize("options", [("--local",), ()])
def test_chain_that_lacks_an_order_is_replayed_by_neither(
    spark: SparkSession, chain: str, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    gone, after = EVENTS[100], EVENTS[101]
    delete = f"DELETE FROM chain_event WHERE id = {gone.id}"  # noqa: S608 - a number
    asyncio.run(execute(chain, delete))
    assert main([*VERIFY, "--candidate", f"{BOOKS_MODULE}:SAME", *options]) == 3
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert f"rows after {gone.pid} up to {after.id} are missing in the database" in shown.err


@pytest.fixture
def of_no_orders(tmp_path: Path) -> tuple[str, str]:
    """A stored state of a group that has no orders, which is right."""
    digest = digest_of(start("none")).hex()
    path = tmp_path / "states.json"
    path.write_text(json.dumps({"group": "none", "id": EVENTS[0].id, "digest": digest}))
    return "--states", f"json:{path}"


def test_groups_with_orders_are_counted_once_however_many_tasks_there_are(
    spark: SparkSession, chain: str, capsys: pytest.CaptureFixture[str],
    of_no_orders: tuple[str, str],
) -> None:  # fmt: skip
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    try:
        assert main([*VERIFY, "--candidate", SECOND_NAME, *of_no_orders, "--json"]) == 1
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "1")
    report = json.loads(capsys.readouterr().out)
    assert (report["groups"], report["divergences"]) == (3, FIRST)
    assert (report["compared"], report["differences"]) == (1, [])


@pytest.mark.parametrize(
    ("name", "candidate", "words"),
    [
        *((name, (), words) for name, words in BAD_GROUPS),
        ("FAILING", (), "result of the fold over the orders after .*: an odd order.*no error"),
        ("IMPORTING", (), "No module named 'no_such_module'"),
        ("SETTING", (), "tick was '0', expected a price"),
        ("NO_TYPES", (), "outputs of the fold was 'order_id NUMBER, .*', expected names and types"),
        (
            "WRONG_TYPES",
            (),
            "an output of the fold was .*, expected its `outputs`, struct<order_id",
        ),
        ("FEW_TYPES", (), "an output of the fold was .*, expected its `outputs`, struct<order_id"),
        ("FAILING", ("--candidate", SECOND_NAME), "error of the fold at id .*: an odd order.*none"),
    ],
)
def test_spark_refuses_a_fold_that_raises_as_a_user_reads_it(
    spark: SparkSession, chain: str, capsys: pytest.CaptureFixture[str],
    of_no_orders: tuple[str, str], name: str, candidate: tuple[str, ...], words: str,
) -> None:  # fmt: skip
    fold = f"{BOOKS_MODULE}:{name}"
    assert main([*VERIFY[:2], fold, *VERIFY[3:], *of_no_orders, *candidate]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert re.fullmatch(f"chainctl: {words}.*\n", shown.err)


def test_distance_of_comparisons_is_refused_without_a_candidate(spark: SparkSession) -> None:
    rows = frame_of(spark, ROWS)
    with pytest.raises(SettingError, match="compared_rows was 1, expected a candidate beside it"):
        orderchain.spark.replay(rows, BOOKS, compared_rows=1)
    with pytest.raises(SettingError, match="compared_rows was 0, expected a number from 1 to"):
        orderchain.spark.replay(rows, BOOKS, candidate=SECOND, compared_rows=0)


def test_spark_names_the_same_beside_a_stored_state_that_it_narrows(
    spark: SparkSession, chain: str, capsys: pytest.CaptureFixture[str]
) -> None:
    group = FIRST[0]["group"]
    orders = [event for event in EVENTS if side_of(event) == group]

    def state_after(count: int, made: Callable[..., Any]) -> tuple[int, str, str, int, bytes]:
        book: Book = start(group)
        made(book, orders[:count])
        return CHAIN_ID, "matching", group, orders[count - 1].id, digest_of(book)

    async def put() -> None:
        async with connected(chain) as connection:
            # The service ran the second version.
            states = [state_after(count, second_step) for count in (FIRST[0]["rows"] - 1, 60)]
            await connection.executemany(PUT_STATE, states)

    asyncio.run(put())
    both = ("--candidate", SECOND_NAME, "--states", "receiver:matching")
    assert main([*VERIFY, *both, "--json"]) == 1, capsys.readouterr()
    report = json.loads(capsys.readouterr().out)
    assert (report["groups"], report["divergences"]) == (3, FIRST)
    (differs,) = report["differences"]
    assert (differs["id"], differs["equal_id"]) == (orders[59].id, FIRST[0]["equal_id"])
    assert main([*VERIFY, *both]) == 1
    narrowed = f"in between, the candidate differs from id {FIRST[0]['id']} on"
    assert narrowed in capsys.readouterr().out

    rows = frame_of(spark, ROWS)
    replayed = orderchain.spark.replay(rows, BOOKS, candidate=SECOND)
    assert {row["id"] for row in replayed.divergences.collect()} == {each["id"] for each in FIRST}
    plain = orderchain.spark.replay(rows, BOOKS)
    for one, other in zip(
        *((each.states, each.outputs) for each in (replayed, plain)), strict=True
    ):
        # The id of an output is that of its piece.
        columns = [name for name in one.columns if name != "id"]
        assert sorted(one.select(columns).collect()) == sorted(other.select(columns).collect())
    assert plain.divergences.count() == 0
    with pytest.raises(SettingError, match="another fold"):
        orderchain.spark.replay(rows, BOOKS, candidate=BOOKS)
