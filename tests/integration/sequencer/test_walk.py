"""The way of one order through the house: as short as promised, and as on the page."""

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest

from chain_kernel.sql import GAP_READER, RECEIVER_WRITER
from matcher_receiver import ReceiverConfig

from .conftest import MakeChain

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]

TOOLS = Path(__file__).parents[3] / "tools"


async def test_way_of_an_order_is_as_on_the_page(
    make_chain: MakeChain, role_dsn: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))
    walk = importlib.import_module("walk")
    chain = await make_chain()
    receiving = ReceiverConfig(
        chain_id=chain.chain_id,
        name="walk",
        database=role_dsn(RECEIVER_WRITER),
        gap_databases=(role_dsn(GAP_READER),),
        kafka=chain.config.kafka,
    )
    to_kafka, to_checkpoint = await walk.walk(chain.config, receiving)
    assert len(to_kafka) <= 20
    assert len(to_checkpoint) <= 14
    assert walk.ways_in(walk.PAGE.read_text()) == [set(to_kafka), set(to_checkpoint)]
