"""Minutes of the soak; `make soak` is the long form: SOAK_HOURS of SOAK_RATE orders per second.

With SOAK_BROKER=no the chain has no broker; messages still have theirs.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Final

import pytest

from local_stack import KafkaServer, PostgresServer

from .chains import without_broker
from .conftest import MakeChain
from .flat import Samples, table
from .rounds import Round
from .soak import Soak, messages_in

HOURS: Final = float(os.environ.get("SOAK_HOURS") or 0.05)
RATE: Final = float(os.environ.get("SOAK_RATE") or 500.0)
BROKER: Final = os.environ.get("SOAK_BROKER") or "yes"
WINDOW_ROWS: Final = int(RATE * 30.0)
"""Rows whose keys are compared: they stay in the database."""
SETTINGS: Final = {
    "lease_seconds": 3.0, "commit_seconds": 2.0, "connect_seconds": 5.0,
    "takeover_skip_ids": 10_000, "partition_ids": WINDOW_ROWS, "key_window_rows": WINDOW_ROWS,
}  # fmt: skip
OURS: Final = ("leader", "standby", "receivers", "relay", "consumer")
SAMPLED: Final = {
    *(f"{kind}_{name}" for kind in ("memory", "descriptors") for name in OURS),
    "connections", "bloat_chain", "bloat_outbox", "disk_database", "disk_Kafka",
    "lag_receivers", "lag_outbox",
}  # fmt: skip
"""Series that must have lasted: one that was not seen does not grow either."""


def has_broker(given: str) -> bool:
    """Return what SOAK_BROKER means; an hour with the wrong one would look like the right one."""
    if given not in ("yes", "no"):
        raise ValueError(f"SOAK_BROKER was {given!r}, expected yes or no")
    return given == "yes"


def test_soak_refuses_a_broker_that_is_neither_yes_nor_no() -> None:
    assert (has_broker("yes"), has_broker("no")) == (True, False)
    for given in ("No", "0", "false", ""):
        with pytest.raises(ValueError, match="SOAK_BROKER"):
            has_broker(given)


def test_growth_is_found_and_bursts_are_none() -> None:
    samples = Samples()
    for second in range(100):
        burst = 900.0 * (second % 4 == 0)
        samples.add(second, memory_leader=50.0 + second, memory_relay=50.0 + burst)
    assert [(line.name, line.is_flat) for line in samples.lines()] == [
        ("memory_leader", False), ("memory_relay", True),
    ]  # fmt: skip


@pytest.mark.guarantee("G1", "G3", "G4", "G5", "G6", "G7", "G10", "G14", "G15", "G18")
@pytest.mark.nightly
@pytest.mark.timeout(HOURS * 5_400.0 + 1_200.0)
async def test_load_and_faults_are_judged_well_and_nothing_grows(
    chain_on_breakable_servers: MakeChain,
    postgres_to_break: PostgresServer,
    kafka_to_break: KafkaServer,
    seeded: random.Random,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def say(line: str) -> None:
        with capfd.disabled():
            print(line, flush=True)  # noqa: T201 - for who waits for it

    chain = await chain_on_breakable_servers(1, **SETTINGS)
    chain = chain if has_broker(BROKER) else without_broker(chain)
    world = Round(chain, postgres_to_break, kafka_to_break, seeded)
    name = f"messages_{chain.database.rpartition('/')[2]}"
    async with messages_in(postgres_to_break, kafka_to_break.bootstrap, name) as messages:
        it = Soak(world, RATE, tmp_path, messages, say)
        try:
            async with it.beside():
                await it.live_for(HOURS * 3_600.0)
        finally:
            say(table(it.samples.lines()))
    lines = it.samples.lines()
    assert {line.name for line in lines} == SAMPLED
    assert [line.name for line in lines if not line.is_flat] == []
