"""A sequencer that the database or the broker refuses says why, and what is needed instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from chain_kernel.errors import ConnectError, OrderchainError, RetryError
from chain_kernel.sql import GAP_READER, SEQUENCER_WRITER
from sequencer import open_sequencer
from sequencer.stores.kafka import KafkaFrameSink
from tests.silent_server import silent_server
from tests.tuned import tuned

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.sequencer.conftest import MakeChain


async def test_start_with_a_login_of_another_role_names_the_login_and_the_role(
    make_chain: MakeChain, role_dsn: Callable[[str], str]
) -> None:
    chain = await make_chain()
    config = msgspec.structs.replace(chain.config, database=role_dsn(GAP_READER))
    with pytest.raises(ConnectError) as refused:
        async with open_sequencer(config):
            pass
    assert "expected a login that is a member of sequencer_writer" in str(refused.value)
    assert "(login gap_reader: permission denied for table chain_" in str(refused.value)


async def test_commit_without_a_privilege_names_the_table_the_login_and_the_role(
    make_chain: MakeChain,
) -> None:
    chain = await make_chain()
    sequencer = open_sequencer(chain.config)
    await sequencer.__aenter__()
    await chain.admin.execute(f"REVOKE INSERT ON chain_batch FROM {SEQUENCER_WRITER}")
    with pytest.raises(ConnectError) as refused:
        await sequencer.submit("key", b"payload")
    with pytest.raises(OrderchainError):  # it ends with what stopped it
        await sequencer.__aexit__(None, None, None)
    shown = "(login sequencer_writer: permission denied for table chain_batch)"
    assert f"expected a login that is a member of sequencer_writer {shown}" in str(refused.value)


async def test_send_to_a_broker_that_is_silent_has_a_reason(make_chain: MakeChain) -> None:
    chain = await make_chain()
    async with silent_server() as port:
        config = tuned(chain.config, kafka=f"127.0.0.1:{port}", publish_seconds=0.2)
        sink = KafkaFrameSink(config)
        with pytest.raises(RetryError) as failed:
            await sink.send([b"frame"])
        await sink.close()
    expected = "expected a broker that answers in time (it is silent)"
    assert str(failed.value) == f"kafka was '127.0.0.1:{port}', {expected}"
