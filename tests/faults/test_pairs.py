"""Two faults at once over real servers: nothing lost, repeated or reordered, and it goes on."""

import asyncio
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from local_stack import KafkaServer, PostgresServer
from tests.builders.standbys import pair_in

from .brokers import Brokers
from .chains import create_chain_on_pair, without_broker
from .conftest import MakeChain
from .rounds import Round, Row
from .stories import CHEAP, SPLIT, STORIES, THREE_BROKERS, WITHOUT_BROKER, Story

ROUNDS = int(os.environ.get("FAULTS_ROUNDS") or 3)

PAIRED = {
    "lease_seconds": 3.0,
    "commit_seconds": 2.0,
    "publish_seconds": 3.0,
    "connect_seconds": 5.0,
}

LONG = (pytest.mark.long, pytest.mark.timeout(1800))


def named(story: Story) -> str:
    return story.__name__.replace("_", " ")


@pytest.mark.guarantee("G1", "G3", "G4", "G5", "G7", "G14", "G15", "G17")
@pytest.mark.parametrize(
    ("story", "rounds"),
    [
        *(pytest.param(story, 1, id=named(story)) for story in CHEAP),
        *(
            pytest.param(story, ROUNDS, id=f"{named(story)}, {ROUNDS} rounds", marks=LONG)
            for story in STORIES
        ),
    ],
)
async def test_pair_of_faults_loses_repeats_and_reorders_nothing_and_is_led_again(
    chain_on_breakable_servers: MakeChain,
    postgres_to_break: PostgresServer,
    kafka_to_break: KafkaServer,
    seeded: random.Random,
    record_property: Callable[[str, object], None],
    story: Story,
    rounds: int,
) -> None:
    total = Row(named(story))
    with recorded(total, record_property):
        for number in range(1, rounds + 1):
            chain = await chain_on_breakable_servers(number, **PAIRED)
            await live(Round(chain, postgres_to_break, kafka_to_break, seeded), story, total)


@pytest.mark.guarantee("G1", "G3", "G4", "G5", "G14", "G15", "G17")
@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "story", [pytest.param(story, id=named(story)) for story in WITHOUT_BROKER]
)
async def test_chain_without_broker_loses_nothing_and_is_led_again(
    chain_on_breakable_postgres: MakeChain,
    postgres_to_break: PostgresServer,
    kafka_server: KafkaServer,
    seeded: random.Random,
    record_property: Callable[[str, object], None],
    story: Story,
) -> None:
    total = Row(f"{named(story)}, no broker")
    with recorded(total, record_property):
        for number in range(1, ROUNDS + 1):
            chain = without_broker(await chain_on_breakable_postgres(number, **PAIRED))
            await live(Round(chain, postgres_to_break, kafka_server, seeded), story, total)


@pytest.mark.guarantee("G3", "G5", "G14", "G15")
@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("story", [pytest.param(story, id=named(story)) for story in THREE_BROKERS])
async def test_brokers_of_a_cluster_killed_with_the_leader_lose_nothing(
    chain_on_three_brokers: MakeChain,
    postgres_to_break: PostgresServer,
    three_brokers: Brokers,
    seeded: random.Random,
    record_property: Callable[[str, object], None],
    story: Story,
) -> None:
    total = Row(named(story))
    with recorded(total, record_property):
        for number in range(1, ROUNDS + 1):
            chain = await chain_on_three_brokers(number, **PAIRED)
            await live(Round(chain, postgres_to_break, three_brokers, seeded), story, total)
            await asyncio.to_thread(three_brokers.start)


@pytest.mark.guarantee("G3", "G4", "G5", "G14", "G15")
@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("has_broker", [True, False], ids=["with broker", "no broker"])
@pytest.mark.parametrize("story", [pytest.param(story, id=named(story)) for story in SPLIT])
async def test_old_primary_that_comes_back_loses_and_repeats_nothing(
    server_folder: Path,
    kafka_server: KafkaServer,
    seeded: random.Random,
    record_property: Callable[[str, object], None],
    story: Story,
    *,
    has_broker: bool,
) -> None:
    total = Row(named(story) if has_broker else f"{named(story)}, no broker")
    with recorded(total, record_property):
        for number in range(1, ROUNDS + 1):
            with pair_in(server_folder / f"pair-{number}") as pair:
                chain = await create_chain_on_pair(pair, kafka_server, number, **PAIRED)
                chain = chain if has_broker else without_broker(chain)
                await live(Round(chain, pair.primary, kafka_server, seeded, pair), story, total)
                pair.primary.thaw()


@contextmanager
def recorded(total: Row, record_property: Callable[[str, object], None]) -> Iterator[None]:
    """Have the row printed at the end, whatever comes."""
    try:
        yield
    finally:
        record_property("pair", msgspec.json.encode(total).decode())


async def live(it: Round, story: Story, total: Row) -> None:
    """Live through a round, and add what came of it to `total`."""
    try:
        await it.live(story)
    finally:
        total.add(it.row)
