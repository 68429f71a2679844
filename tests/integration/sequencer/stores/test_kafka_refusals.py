"""A sequencer that the database or the broker refuses says why, and what is needed instead."""

from collections.abc import Callable

import msgspec
import pytest

from chain_kernel.errors import ConnectError, OrderchainError
from chain_kernel.sql import GAP_READER, SEQUENCER_WRITER
from sequencer import open_sequencer
from tests.integration.sequencer.conftest import MakeChain


async def test_other_role_is_named(make_chain: MakeChain, role_dsn: Callable[[str], str]) -> None:
    chain = await make_chain()
    config = msgspec.structs.replace(chain.config, database=role_dsn(GAP_READER))
    with pytest.raises(ConnectError) as refused:
        async with open_sequencer(config):
            pass
    assert "expected a login that is a member of sequencer_writer" in str(refused.value)
    assert "(login gap_reader: permission denied for table chain_" in str(refused.value)


async def test_missing_privilege_names_table_login_and_role(make_chain: MakeChain) -> None:
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
