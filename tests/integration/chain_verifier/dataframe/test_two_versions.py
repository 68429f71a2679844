"""`verify replay --candidate`: two versions of a fold over a chain, with Spark and without."""

import asyncio
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

import orderchain.spark
from chain_kernel.errors import SettingError
from chain_verifier.dataframe.fold import digest_of
from chainctl.main import main
from tests.integration.chain_verifier.conftest import frame_of
from tests.integration.chain_verifier.dataframe.books import (
    BOOKS,
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

ROWS = chain_of(random.Random(9), 300)
EVENTS = events_of(ROWS)
BOOKS_MODULE = "tests.integration.chain_verifier.dataframe.books"
VERIFY = ("verify", "replay", f"{BOOKS_MODULE}:BOOKS", "--chain", str(CHAIN_ID))
SECOND_NAME = f"{BOOKS_MODULE}:SECOND"


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


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "--states was not given, expected the stored states, or --candidate"),
        (("--local",), "--candidate"),
        (("--states", "json:x", "--compared-rows", "1"), "--candidate"),
        (("--candidate", VERIFY[2], "--local"), "expected another fold"),
        (("--candidate", f"{BOOKS_MODULE}:BY_COLUMN", "--local"), "side_of: one function for both"),
        (("--candidate", "no.such:FOLD", "--local"), "no.such:FOLD"),
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


def test_spark_names_the_same_beside_a_stored_state_that_it_narrows(
    spark: SparkSession, chain: str, capsys: pytest.CaptureFixture[str]
) -> None:
    group = FIRST[0]["group"]
    orders = [event for event in EVENTS if side_of(event) == group]

    def state_after(count: int, made: Callable[..., Any]) -> tuple[int, str, int, bytes]:
        book: Book = start(group)
        made(book, orders[:count])
        return CHAIN_ID, group, orders[count - 1].id, digest_of(book)

    async def put() -> None:
        async with connected(chain) as connection:
            await connection.execute(
                'CREATE TABLE book_state (chain_id int, "group" text, id bigint, digest bytea);'
                "GRANT SELECT ON book_state TO auditor"
            )
            # The service ran the second version.
            states = [state_after(count, second_step) for count in (FIRST[0]["rows"] - 1, 60)]
            await connection.executemany("INSERT INTO book_state VALUES ($1, $2, $3, $4)", states)

    asyncio.run(put())
    both = ("--candidate", SECOND_NAME, "--states", "database:book_state")
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
