"""The verified mark: it moves forward alone, and tells when what it vouched for has changed."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import asyncpg
import pytest

from chain_verifier.marks import read_standing, set_mark
from orderchain.errors import ChainMissing, ConnectError, SealMismatch
from orderchain.roles import AUDITOR, GAP_READER
from tests.spark.planting import CHAIN_ID, chain_of, head_of
from tests.spark.storing import batches_of, execute, store

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = chain_of(random.Random(12), 60)
HEAD = head_of(ROWS)
MIDDLE = batches_of(ROWS)[2][-1].id or 0
"""The end of the third batch."""


@pytest.fixture
def audit(database: str, role_dsn: Callable[[str], str]) -> str:
    asyncio.run(store(database, ROWS))
    return role_dsn(AUDITOR)


def move(dsn: str, after_id: int, until_id: int) -> bool:
    return set_mark(
        dsn, dsn, CHAIN_ID, after_id=after_id, until_id=until_id, verified_by="eve@desk"
    )


def test_mark_of_a_new_chain_is_none_and_then_where_it_was_set(audit: str) -> None:
    before = read_standing(audit, CHAIN_ID)
    assert (before.head, before.start, before.mark) == (HEAD, 0, None)
    assert move(audit, 0, MIDDLE)
    after = read_standing(audit, CHAIN_ID)
    assert after.mark is not None
    assert (after.start, after.mark.until_id, after.mark.verified_by) == (
        MIDDLE, MIDDLE, "eve@desk",
    )  # fmt: skip
    assert move(audit, MIDDLE, HEAD)
    assert read_standing(audit, CHAIN_ID).start == HEAD


def test_mark_does_not_move_over_rows_that_were_left_out(audit: str) -> None:
    assert not move(audit, MIDDLE, HEAD)
    assert read_standing(audit, CHAIN_ID).mark is None


def test_mark_does_not_move_into_a_batch_nor_where_nothing_is_new(audit: str) -> None:
    assert not move(audit, 0, batches_of(ROWS)[2][0].id or 0)
    assert move(audit, 0, HEAD)
    assert not move(audit, HEAD, HEAD)


def test_mark_on_a_batch_that_was_rewritten_is_a_mismatch(audit: str, database: str) -> None:
    move(audit, 0, MIDDLE)
    rewritten = f"UPDATE chain_batch SET seal = sha256(seal) WHERE last_id = {MIDDLE}"  # noqa: S608
    asyncio.run(execute(database, rewritten))
    with pytest.raises(SealMismatch, match=f"seal after {MIDDLE} was"):
        read_standing(audit, CHAIN_ID)


def test_mark_behind_the_head_means_all_again_up_to_the_mark(audit: str, database: str) -> None:
    """A database that was put back to an older state lacks rows that were there once."""
    move(audit, 0, HEAD)
    asyncio.run(
        execute(
            database,
            f"DELETE FROM chain_event WHERE id > {MIDDLE}",  # noqa: S608 - a number
            f"DELETE FROM chain_batch WHERE last_id > {MIDDLE}",  # noqa: S608
            f"UPDATE chain_head SET last_id = {MIDDLE}, published_id = 0",  # noqa: S608
        )
    )
    standing = read_standing(audit, CHAIN_ID)
    assert (standing.start, standing.head, standing.known_head) == (0, MIDDLE, HEAD)


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
        read_standing(audit, CHAIN_ID + 1)
