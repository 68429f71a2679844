"""A shadow over a real PostgreSQL: it follows a receiver live, and changes nothing of it."""

import asyncio
import json
import os
import sys
from contextlib import AsyncExitStack
from typing import Any

import asyncpg
import pytest

from chain_kernel.errors import SettingError
from chain_kernel.sql import AUDITOR
from chainctl.views import read_receivers, read_shadows
from tests.builders.stored_chain import StoredChain
from tests.deadlines import until

from .conftest import Open, RoleDsn
from .counts import Counts, serve


async def test_first_difference_of_a_live_candidate_is_named_everywhere_and_changes_nothing(
    stored: StoredChain, opened: Open, admin: asyncpg.Connection, chain_id: int,
    role_dsn: RoleDsn,
) -> None:  # fmt: skip
    await stored.commit(30)
    middle = stored.chain.mark().id
    async with opened("matching") as matching:
        await serve(matching, counts := Counts(), middle)
        async with opened("candidate", "matching") as shadow:
            candidate = Counts()
            await serve(shadow, candidate, middle)
            (line,) = await until_compared(admin, chain_id, middle)
            assert (line.shadow_of, line.groups, line.result) == ("matching", 0, "equal")
            wrong = (await stored.commit(10)).events[3]
            candidate.wrong_id = wrong.id
            end = stored.chain.mark().id
            await asyncio.gather(serve(matching, counts, end), serve(shadow, candidate, end))
            found = shadow.stats().shadow
            place = await read_receivers(admin, chain_id)
    assert found is not None
    assert found.first is not None
    assert (found.first.group, found.first.id) == (str(wrong.id % 3), end)
    assert (found.first.equal_id, found.groups) == (middle, 1)
    assert [each.receiver for each in place] == ["matching"], "a shadow has no checkpoint"
    assert place[0].head_delivered == end

    (line,) = await until_compared(admin, chain_id, end)
    words = f"differs in '{wrong.id % 3}' after id {end}, equal up to {middle}"
    assert line.result == words
    assert (line.stored_digest, line.found_digest) == (
        found.first.stored.hex(), found.first.found.hex(),
    )  # fmt: skip
    shown = "status", "--chain", str(chain_id)
    assert words in await chainctl(role_dsn(AUDITOR), *shown)
    (shadow_line,) = json.loads(await chainctl(role_dsn(AUDITOR), *shown, "--json"))["shadows"]
    assert (shadow_line["receiver"], shadow_line["result"]) == ("candidate", words)


async def chainctl(dsn: str, *arguments: str) -> str:
    """Return what a command writes, which succeeds."""
    command = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "chainctl", *arguments, stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"CHAINCTL_DATABASE": dsn},
    )  # fmt: skip
    shown, _ = await command.communicate()
    assert command.returncode == 0
    return shown.decode()


async def until_compared(admin: asyncpg.Connection, chain_id: int, at_id: int) -> list[Any]:
    """Return the shadows of the chain once their result after `at_id` is stored."""

    async def lines() -> list[Any]:
        found = await read_shadows(admin, chain_id)
        return found if found and found[0].compared_id == at_id else []

    await until(lines)
    return await lines()


async def test_states_of_a_shadow_are_kept_under_its_own_name_and_forgotten_with_it(
    stored: StoredChain, opened: Open, admin: asyncpg.Connection, chain_id: int, database: str,
) -> None:  # fmt: skip
    await stored.commit(9)
    end = stored.chain.mark().id
    async with AsyncExitStack() as opening:
        for name, of in (("matching", None), ("candidate", "matching")):
            receiver = await opening.enter_async_context(opened(name, of))
            await serve(receiver, Counts(), end)

    async def states_of(name: str) -> list[tuple[object, ...]]:
        statement = 'SELECT id, "group", digest FROM receiver_state WHERE receiver = $1'
        return sorted(map(tuple, await admin.fetch(statement, name)))

    assert await states_of("candidate") == await states_of("matching") != []
    forget = "receivers", "forget", "candidate", "--chain", str(chain_id), "--reason", "done"
    await chainctl(database, *forget)
    assert await states_of("candidate") == []
    assert await read_shadows(admin, chain_id) == []
    assert len(await states_of("matching")) == 3


async def test_name_of_a_shadow_is_no_receivers_until_it_is_forgotten(
    stored: StoredChain, opened: Open, admin: asyncpg.Connection, chain_id: int, database: str
) -> None:
    await stored.commit(9)
    end = stored.chain.mark().id
    async with opened("matching") as matching, opened("candidate", "matching") as shadow:
        await serve(matching, Counts(), end)
        await serve(shadow, Counts(), end)
    await until_compared(admin, chain_id, end)
    with pytest.raises(SettingError, match="none of a shadow of 'matching'"):
        await opened("candidate").__aenter__()
    with pytest.raises(SettingError, match="no receiver keeps its checkpoint"):
        await opened("matching", "candidate").__aenter__()
    forget = "receivers", "forget", "candidate", "--chain", str(chain_id), "--reason", "done"
    await chainctl(database, *forget)
    async with opened("candidate") as receiver:
        await serve(receiver, Counts(), end)


async def test_states_after_a_place_that_is_moved_back_are_gone(
    stored: StoredChain, opened: Open, admin: asyncpg.Connection, chain_id: int, database: str
) -> None:
    ends = []
    async with opened("matching") as matching:
        counts = Counts()
        for _ in range(3):
            await stored.commit(5)
            ends.append(stored.chain.mark().id)
            await serve(matching, counts, ends[-1])
    back = "receivers", "move", "matching", "--to", str(ends[0]), "--chain", str(chain_id)
    await chainctl(database, *back, "--reason", "a mistake")
    left = await admin.fetch("SELECT DISTINCT id FROM receiver_state")
    assert [row["id"] for row in left] == [ends[0]]


async def test_shadow_that_has_no_one_to_follow_is_refused(
    stored: StoredChain, opened: Open
) -> None:
    await stored.commit(3)
    with pytest.raises(SettingError, match="shadow_of was 'mtching', expected a receiver of chain"):
        await opened("candidate", "mtching").__aenter__()
    with pytest.raises(SettingError, match="another name than the shadow's own"):
        opened("matching", "matching")


async def test_states_of_a_place_that_is_only_reported_are_compared_too(
    stored: StoredChain, opened: Open, admin: asyncpg.Connection, chain_id: int
) -> None:
    await stored.commit(9)
    end = stored.chain.mark().id
    async with opened("matching", checkpoint="reported") as matching:
        await serve(matching, Counts(), end)
        async with opened("candidate", "matching") as shadow:
            await serve(shadow, Counts(), end)
    (line,) = await until_compared(admin, chain_id, end)
    assert (line.compared, line.result) == (3, "equal")
