"""Attempts that fail leave nothing for the collector: see tests/faults/test_outage_leaves.py."""

from collections.abc import Awaitable, Callable

import pytest

from chain_kernel.errors import ConnectError
from local_stack.process import free_port
from sequencer import SequencerConfig
from sequencer.leadership import PostgresLease
from sequencer.stores.kafka import KafkaFrameSink
from sequencer.stores.postgres import PostgresChainStore
from tests.collected import errors_left_by
from tests.unit.sequencer.builders import make_term

Attempt = Callable[[], Awaitable[object]]


def looking(config: SequencerConfig) -> Attempt:
    return PostgresChainStore(config).look


def renewing(config: SequencerConfig) -> Attempt:
    lease = PostgresLease(config)
    return lambda: lease.renew(make_term(), 0)


def starting(config: SequencerConfig) -> Attempt:
    sink = KafkaFrameSink(config)
    return lambda: sink.start("orders", 0)


@pytest.mark.parametrize("part", [looking, renewing, starting])
async def test_attempt_that_fails_leaves_no_error_for_the_collector(
    part: Callable[[SequencerConfig], Attempt],
) -> None:
    ports = [free_port()]
    config = SequencerConfig(
        chain_id=1, database=f"postgresql://trader@127.0.0.1:{ports[0]}/orders",
        kafka=f"127.0.0.1:{free_port(ports)}",
    )  # fmt: skip
    attempt = part(config)

    async def fail() -> None:
        for _ in range(3):
            with pytest.raises(ConnectError):
                await attempt()

    assert await errors_left_by(fail()) == []
