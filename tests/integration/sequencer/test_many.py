"""Many chains in one process: few connections, each chain for itself, and whole after cuts."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import asyncpg
import pytest
from msgspec.structs import replace

from chain_kernel.errors import ChainLed, RetryError, SettingError, SteppedDown
from chain_kernel.model import IntakeMark
from sequencer import Order, Sequencer, SequencerConfig, open_sequencer, open_sequencers
from sequencer.many import TAKE_OVERS_AT_ONCE
from sequencer.stores.postgres import PostgresChainStore
from tests.builders.created_chain import Chain
from tests.builders.orders import make_orders
from tests.deadlines import deadline, until
from tests.integration.sequencer.conftest import MakeChain

CHAINS = 12
COMMITS = 3
ORDERS = 20
CUTS = 3
BEATS = 6
LEASE_SECONDS = 3.0
LATE = LEASE_SECONDS / 2
"""Since the last beat: two and a half times as long as until the next one."""
_OURS = "datname = current_database() AND application_name LIKE 'orderchain %'"


async def make_chains(make_chain: MakeChain, count: int, **settings: object) -> list[Chain]:
    return [await make_chain(number, **settings) for number in range(1, count + 1)]


def configs_of(chains: Sequence[Chain], **changes: object) -> list[SequencerConfig]:
    return [replace(chain.config, **changes) for chain in chains]


async def connections(chain: Chain) -> dict[str, int]:
    """Return the connections to the database by the first words of their names."""
    found = await chain.fetch(
        f"SELECT split_part(application_name, ' ', 2) AS purpose, count(*)::integer AS count "  # noqa: S608
        f"FROM pg_stat_activity WHERE {_OURS} GROUP BY 1"
    )
    return {row["purpose"]: row["count"] for row in found}


class Load:
    """Orders for every chain, until it is stopped; each chain counts what was acknowledged."""

    def __init__(self, sequencers: dict[int, Sequencer]) -> None:
        self._stopping = asyncio.Event()
        self.acked = dict.fromkeys(sequencers, 0)
        self._tasks = [asyncio.create_task(self._submit(*each)) for each in sequencers.items()]

    async def _submit(self, chain_id: int, sequencer: Sequencer) -> None:
        while not self._stopping.is_set():
            start = self.acked[chain_id]
            await sequencer.submit_many(make_orders(ORDERS, start=start))
            self.acked[chain_id] = start + ORDERS

    async def until_all_have_more(self) -> None:
        """Wait until each chain has acknowledged two batches more."""
        wanted = {chain_id: count + 2 * ORDERS for chain_id, count in self.acked.items()}
        async with deadline():
            while any(self.acked[chain_id] < count for chain_id, count in wanted.items()):
                assert not any(task.done() for task in self._tasks), self._tasks
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
        self._stopping.set()
        await asyncio.gather(*self._tasks)


class TakeOvers:
    """Counts take-overs that are under way at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._now = 0
        self.most = 0
        for name in ("take_over", "take_over_again"):
            counted = self._counted(getattr(PostgresChainStore, name))
            monkeypatch.setattr(PostgresChainStore, name, counted)

    def _counted(self, work: Callable[..., Any]) -> Callable[..., Any]:
        async def counted(*values: object) -> object:
            self._now += 1
            self.most = max(self.most, self._now)
            try:
                return await work(*values)
            finally:
                self._now -= 1

        return counted


async def hold_up_beats(chain: Chain, sequencers: Sequence[Sequencer]) -> None:
    """Freeze the backend of the leases until the next beat of each chain is due, or overdue."""
    backend = (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
        "AND application_name LIKE 'orderchain lease%'"
    )
    await until(lambda: chain.fetch(backend))  # the first beat opens it
    pid = await chain.value(backend)
    os.kill(pid, signal.SIGSTOP)
    try:
        await until(lambda: all(each.stats().lease_age_seconds > LATE for each in sequencers))
    finally:
        os.kill(pid, signal.SIGCONT)


async def beat_by_one_statement(chain: Chain) -> bool:
    """Whether one transaction has written the lease of each chain: its last beat."""
    return bool(await chain.value("SELECT count(DISTINCT xmin::text) = 1 FROM chain_lease"))


async def test_chains_of_one_process_share_connections_and_outlive_cuts_of_them(
    make_chain: MakeChain, monkeypatch: pytest.MonkeyPatch
) -> None:
    chains = await make_chains(
        make_chain, CHAINS, lease_seconds=LEASE_SECONDS, commit_seconds=LEASE_SECONDS * 0.8
    )
    take_overs = TakeOvers(monkeypatch)
    async with open_sequencers(configs_of(chains), connections=COMMITS) as sequencers:
        assert take_overs.most == TAKE_OVERS_AT_ONCE
        await hold_up_beats(chains[0], list(sequencers.values()))
        await until(lambda: beat_by_one_statement(chains[0]))
        load = Load(dict(sequencers))
        for _ in range(CUTS):
            await load.until_all_have_more()
            found = await connections(chains[0])
            assert found.pop("sequencer") == COMMITS
            assert {"lease": 1, "keys": 1} | found == {"lease": 1, "keys": 1}
            cut = "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE "
            await chains[0].fetch(cut + _OURS)
        await load.until_all_have_more()
        await load.stop()
        assert [each.why_not_ready() for each in sequencers.values()] == [None] * CHAINS
        assert take_overs.most == TAKE_OVERS_AT_ONCE
    assert await connections(chains[0]) == {}
    for chain in chains:
        rows = await chain.rows()
        assert [row.key for row in rows] == [
            order.key for order in make_orders(load.acked[chain.chain_id])
        ]
        assert [row.pid for row in rows] == [0, *(row.id for row in rows[:-1])]
    verify = "chainctl", "verify", "--local", "--source", "database", "--all-chains"
    settings = {**os.environ, "CHAINCTL_DATABASE": chains[0].database}
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", *verify, env=settings)
    assert await process.wait() == 0


async def test_chain_that_ends_ends_no_other(make_chain: MakeChain) -> None:
    chains = await make_chains(make_chain, 3)
    async with (
        open_sequencer(chains[0].config) as elsewhere,
        open_sequencers(configs_of(chains), connections=1) as sequencers,
    ):
        with pytest.raises(ChainLed):
            await sequencers[1].until_stopped()
        assert "which is alive" in str(sequencers[1].why_not_ready())
        with pytest.raises(ChainLed):
            await sequencers[1].submit("key", b"")
        await chains[1].fetch("UPDATE chain_lease SET step_down = true WHERE chain_id = 2")
        async with deadline():
            with pytest.raises(SteppedDown):
                await sequencers[2].until_stopped()
        assert (await sequencers[3].submit("key", b"")).id > 0
        assert sequencers[3].stats().take_overs == 1
        await elsewhere.submit("key", b"")
    assert [(await chain.head())["epoch"] for chain in chains] == [1, 1, 1]


async def test_standby_of_many_chains_leads_the_one_that_is_handed_over(
    make_chain: MakeChain,
) -> None:
    chains = await make_chains(make_chain, 3)
    standbys = configs_of(chains, standby=True, owner="standby")
    async with open_sequencers(configs_of(chains), connections=1) as leading:
        async with open_sequencers(standbys, connections=1) as waiting:
            assert waiting[2].why_not_ready() == "chain 2: not leading"
            first = await leading[2].submit("first", b"")
            await chains[1].fetch("UPDATE chain_lease SET step_down = true WHERE chain_id = 2")
            async with deadline():
                await waiting[2].until_leading()
            assert await waiting[2].submit("first", b"") == first
            await leading[1].submit("first", b"")
            await leading[3].submit("first", b"")
        assert [leading[number].stats().take_overs for number in (1, 3)] == [1, 1]
    assert [(await chain.head())["epoch"] for chain in chains] == [1, 2, 1]


async def submit_new(sequencer: Sequencer) -> object:
    return await sequencer.submit("key", b"")


async def move_mark(sequencer: Sequencer) -> object:
    """Commit no row, but the place of an intake."""
    repeat, mark = Order("before", b""), IntakeMark(source="feed", position=1, digest=b"")
    return await sequencer.submit_each([repeat], intake=mark, positions=[0])


@pytest.mark.parametrize("what", [submit_new, move_mark])
@pytest.mark.parametrize(
    "table", [pytest.param("chain_head", marks=pytest.mark.merge), "chain_lease"]
)
async def test_row_of_one_chain_that_is_locked_holds_no_connection_of_others(
    make_chain: MakeChain,
    table: str,
    what: Callable[[Sequencer], Coroutine[object, object, object]],
) -> None:
    locked, free = await make_chains(make_chain, 2)
    other = await asyncpg.connect(locked.database)
    async with open_sequencers(configs_of([locked, free]), connections=1) as sequencers:
        await sequencers[1].submit("before", b"")
        before = await beats(free)
        transaction = other.transaction()
        await transaction.start()
        await other.execute(f"SELECT FROM {table} WHERE chain_id = 1 FOR UPDATE")
        waiting = asyncio.create_task(what(sequencers[1]))
        async with deadline():
            number = 0
            # Longer than the deadline of a commit, by which a connection would be given up.
            while await beats(free) < before + BEATS:
                assert (await sequencers[2].submit(f"key{number}", b"")).id > 0
                number += 1
            assert waiting.done() is (table == "chain_lease")
            await transaction.rollback()
            assert await waiting
        assert [each.stats().take_overs for each in sequencers.values()] == [1, 1]
    await other.close()
    assert await locked.rows() != []


async def beats(chain: Chain) -> int:
    counter: int = await chain.value(
        "SELECT counter FROM chain_lease WHERE chain_id = $1", chain.chain_id
    )
    return counter


async def test_too_few_connections_are_added_up_in_one_line(
    make_chain: MakeChain, caplog: pytest.LogCaptureFixture
) -> None:
    chains = await make_chains(make_chain, 4, recover_seconds=1.0)
    name = await chains[0].value("SELECT current_database()")
    await chains[0].fetch(f"ALTER DATABASE {name} CONNECTION LIMIT 2")
    caplog.set_level(logging.WARNING)
    async with open_sequencers(configs_of(chains), connections=4) as sequencers:
        for sequencer in sequencers.values():
            with pytest.raises(RetryError, match="too many connections"):
                await sequencer.until_stopped()
    lines = [each.message for each in caplog.records if "too few" in each.message]
    assert len(lines) == 1
    assert "4 chains need 6 (4 for commits, one for leases, one for keys); allowed are" in lines[0]
    assert lines[0].endswith(", 2 to the database")


def a_config(chain_id: int, **changes: object) -> SequencerConfig:
    given = {"database": "postgresql://one/orders", "kafka": "broker:9092", **changes}
    return SequencerConfig(chain_id=chain_id, **given)  # type: ignore[arg-type]


@pytest.mark.merge
@pytest.mark.parametrize(
    ("configs", "connections", "part"),
    [
        ([], 1, "configs was 0, expected one chain at least"),
        ([a_config(1)], 0, "connections was 0, expected 1 or more"),
        ([a_config(1), a_config(1)], 1, "chain_id was 1, expected each chain once"),
        (
            [a_config(1), a_config(2, database="postgresql://two/orders")], 1,
            "database of chain 2 was",
        ),
        (
            [a_config(1), a_config(2, unsafe_durability=True)], 1,
            "unsafe_durability of chain 2 was True, expected False, as chain 1 has it",
        ),
    ],
)  # fmt: skip
async def test_chains_that_cannot_share_connections_are_refused(
    configs: list[SequencerConfig], connections: int, part: str
) -> None:
    with pytest.raises(SettingError) as raised:
        await open_sequencers(configs, connections=connections).__aenter__()
    assert part in str(raised.value)
    assert "\n" not in str(raised.value)
