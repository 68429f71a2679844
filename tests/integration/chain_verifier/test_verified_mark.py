"""The verified mark: it moves forward alone, and shows when what it vouched for has changed."""

# ruff: noqa: S608 - every value in a statement is a number of this file

import asyncio
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import asyncpg
import pytest

from chain_kernel.errors import ChainMissing, ConnectError
from chain_kernel.sql import AUDITOR, GAP_READER
from chain_verifier.verified_mark import read_extent, set_mark
from tests.integration.chain_verifier.planted_faults import CHAIN_ID, chain_of, head_of
from tests.integration.chain_verifier.stored_rows import batches_of, mark_up_to, store
from tests.stored_pages import execute

ROWS = chain_of(random.Random(12), 60)
HEAD = head_of(ROWS)
MIDDLE = batches_of(ROWS)[2][-1].id or 0
"""The end of the third batch."""


@pytest.fixture
def audit(database: str, role_dsn: Callable[[str], str]) -> str:
    asyncio.run(store(database, ROWS))
    return role_dsn(AUDITOR)


def move(dsn: str, after_id: int, until_id: int) -> bool:
    return mark_up_to(dsn, after_id, until_id, "eve@desk")


def test_mark_of_a_new_chain_is_none_and_then_where_it_was_set(audit: str) -> None:
    before = read_extent(audit, CHAIN_ID)
    assert (before.head, before.start, before.mark) == (HEAD, 0, None)
    assert move(audit, 0, MIDDLE)
    after = read_extent(audit, CHAIN_ID)
    assert after.mark is not None
    assert (after.start, after.mark.until_id, after.mark.verified_by) == (
        MIDDLE, MIDDLE, "eve@desk",
    )  # fmt: skip
    assert move(audit, MIDDLE, HEAD)
    assert read_extent(audit, CHAIN_ID).start == HEAD


def test_mark_does_not_move_over_rows_that_were_left_out(audit: str) -> None:
    assert not move(audit, MIDDLE, HEAD)
    assert read_extent(audit, CHAIN_ID).mark is None


def test_mark_does_not_move_to_a_batch_that_was_changed_since_it_was_verified(audit: str) -> None:
    given: dict[str, Any] = {"after_id": 0, "until_id": HEAD, "verified_by": "eve"}
    assert not set_mark(audit, audit, CHAIN_ID, seal=bytes(32), **given)
    assert read_extent(audit, CHAIN_ID).mark is None


def test_mark_does_not_move_into_a_batch_nor_where_nothing_is_new(audit: str) -> None:
    assert not move(audit, 0, batches_of(ROWS)[2][0].id or 0)
    assert move(audit, 0, HEAD)
    assert not move(audit, HEAD, HEAD)


def test_marks_on_batches_that_were_rewritten_are_contradicted_the_first_is_named(
    audit: str, database: str
) -> None:
    ends = [batch[-1].id or 0 for batch in batches_of(ROWS)]
    for after, until in pairwise([0, *ends[:4]]):
        assert move(audit, after, until)
    before = read_extent(audit, CHAIN_ID)
    assert (before.start, before.contradicted) == (ends[3], None)
    # The batch that the second mark names is gone, and the third's has another seal.
    asyncio.run(
        execute(
            database,
            "SET session_replication_role = replica",
            f"DELETE FROM chain_batch WHERE last_id = {ends[1]}",
            f"UPDATE chain_batch SET seal = sha256(seal) WHERE last_id = {ends[2]}",
        )
    )
    standing = read_extent(audit, CHAIN_ID)
    mark = standing.contradicted
    assert mark is not None
    assert (mark.after_id, mark.until_id, mark.found, mark.count) == (ends[0], ends[1], None, 2)
    assert (mark.verified_by, len(mark.seal)) == ("eve@desk", 32)
    assert (standing.start, standing.known_head) == (0, HEAD)
    # The owner withdraws the marks that do not hold, as the page says, and all is as before.
    asyncio.run(execute(database, f"DELETE FROM chain_verified WHERE until_id >= {ends[1]}"))
    assert read_extent(audit, CHAIN_ID).start == ends[0]


def test_marks_of_rows_that_were_archived_are_not_judged(audit: str, database: str) -> None:
    ends = [batch[-1].id or 0 for batch in batches_of(ROWS)]
    for after, until in pairwise([0, *ends[:3]]):
        assert move(audit, after, until)
    asyncio.run(
        execute(
            database,
            "UPDATE chain_batch SET prev_last_id = NULL, first_id = last_id, row_count = 0"
            f" WHERE last_id = {ends[1]}",
            f"DELETE FROM chain_batch WHERE last_id < {ends[1]}",
        )
    )
    standing = read_extent(audit, CHAIN_ID)
    assert (standing.boundary_id, standing.start, standing.contradicted) == (ends[1], ends[2], None)
    seal = f"UPDATE chain_batch SET seal = sha256(seal) WHERE last_id = {ends[2]}"
    asyncio.run(execute(database, seal))
    mark = read_extent(audit, CHAIN_ID).contradicted
    assert mark is not None
    assert (mark.after_id, mark.until_id, mark.count) == (ends[1], ends[2], 1)


def test_mark_behind_the_head_means_all_again_up_to_the_mark(audit: str, database: str) -> None:
    """A database that was put back to an older state lacks rows that were there once."""
    move(audit, 0, HEAD)
    asyncio.run(
        execute(
            database,
            f"DELETE FROM chain_event WHERE id > {MIDDLE}",
            f"DELETE FROM chain_batch WHERE last_id > {MIDDLE}",
            f"UPDATE chain_head SET last_id = {MIDDLE}, published_id = 0",
        )
    )
    standing = read_extent(audit, CHAIN_ID)
    assert (standing.start, standing.head, standing.known_head) == (0, MIDDLE, HEAD)
    assert standing.contradicted is not None
    assert (standing.contradicted.until_id, standing.contradicted.found) == (HEAD, None)


def test_mark_stays_as_it_was_set(audit: str) -> None:
    move(audit, 0, MIDDLE)
    for change in ("UPDATE chain_verified SET until_id = 1", "DELETE FROM chain_verified"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            asyncio.run(execute(audit, change))


def test_mark_by_another_role_or_of_another_chain_is_refused(
    audit: str, role_dsn: Callable[[str], str]
) -> None:
    with pytest.raises(ConnectError, match="auditor"):
        move(role_dsn(GAP_READER), 0, MIDDLE)
    with pytest.raises(ChainMissing):
        read_extent(audit, CHAIN_ID + 1)
