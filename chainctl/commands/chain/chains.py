"""`chainctl chain`: makes chains with their topics, and lists them. Nothing else ever makes one."""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final

import click
from msgspec import Struct

from chainctl.commands.verifier.verify_mark import verify_mark
from chainctl.database import SQL, connected_to, database_id
from chainctl.event_loop import run_async
from chainctl.options import (
    CHAIN_ID,
    Integer,
    SuggestingGroup,
    json_option,
    uses_settings,
    watch_option,
)
from chainctl.output import data_json, repeated, table, talk
from orderchain.errors import SettingError, TopicError
from orderchain.frame import default_topic
from orderchain.limits import FRAME_BYTES_MAX
from orderchain.seal import genesis_seal
from orderchain.sql import AUDITOR, OWNER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from chainctl.database import Connection
    from chainctl.settings import Settings
    from orderchain.clients.kafka import AIOKafkaAdminClient
    from orderchain.clients.kafka_config import KafkaConfig
    from orderchain.clients.topics import TopicDescription


PARTITION_IDS: Final = 10_000_000
"""Ids of one partition of the table: about 2 GB at orders of 130 bytes. Small enough to be dropped
and vacuumed in one go, large enough that a chain has tens of them and not thousands."""

PARTITION_IDS_MAX: Final = 2**52
"""Fifty days of time-based ids, 2^20 of them per millisecond; a day is 86,400,000 * 2^20. Far
below 2^63 divided by the few partitions that are made ahead."""

_PARTITION: Final = 0
"""A topic of a chain has one partition, so there is only this one."""


_LISTED: Final = ["chain", "epoch", "head_persisted", "head_published", "topic", "created"]


class ChainPlan(Struct, frozen=True, kw_only=True):
    """The parameters of the chain to create."""

    chain_id: int
    topic: str | None
    """None: the default topic, or the one that the chain already has."""
    partition_ids: int | None


class Creation(Struct, frozen=True, kw_only=True):
    """What `chain create` did."""

    chain: int
    topic: str
    chain_created: bool
    topic_created: bool


@click.group(cls=SuggestingGroup)
def chain() -> None:
    """Chains: each one ordered stream, with a topic of its own."""


chain.add_command(verify_mark, "verify-mark")


@chain.command()
@click.argument("chain_id", metavar="N", type=CHAIN_ID)
@click.option("--topic", metavar="NAME", help="Its topic.  [default: orderchain.N]")
@click.option(
    "--partition-ids",
    type=Integer(1, PARTITION_IDS_MAX),
    metavar="COUNT",
    help=f"Ids that one partition of the table spans.  [default: {PARTITION_IDS}]",
)
@json_option
@uses_settings("database", "kafka", "connect_seconds")
def create(
    settings: Settings, chain_id: int, topic: str | None, partition_ids: int | None, as_json: bool
) -> None:
    """Make the chain N with its topic; what is there already is left as it is."""
    if topic is not None:
        check_topic_name(topic)
    plan = ChainPlan(chain_id=chain_id, topic=topic, partition_ids=partition_ids)
    done = run_async(create_chain(settings, plan))
    chain = "created" if done.chain_created else "is there already"
    topic_state = "created" if done.topic_created else "is there already"
    talk(f"chainctl: chain {done.chain} {chain}, topic {done.topic} {topic_state}")
    if as_json:
        data_json(done)


@chain.command("list")
@click.option("--rows", "with_rows", is_flag=True, help="Count the rows too (reads every batch).")
@watch_option
@json_option
@uses_settings("database", "connect_seconds")
def list_(settings: Settings, with_rows: bool, watch_seconds: float | None, as_json: bool) -> None:
    """List the chains and their heads."""

    def show() -> None:
        found = run_async(_list(settings, with_rows=with_rows))
        if as_json:
            data_json(found)
            return
        names = [*_LISTED, "rows"] if with_rows else _LISTED
        table(names, [tuple(row[name] for name in names) for row in found])

    repeated(watch_seconds, show)


async def create_chain(settings: Settings, plan: ChainPlan) -> Creation:
    """Make the chain's row first, then its topic.

    The row decides which chain owns the topic, so two concurrent creations cannot end with one
    topic for two chains. A crash between the two steps leaves a chain without a topic. The next
    call makes it; until then, the sequencer refuses to start.
    """
    dsn, kafka = settings.database_dsn(), settings.kafka_config()
    async with AsyncExitStack() as stack:
        connection = await stack.enter_async_context(
            connected_to(dsn, settings.connect_seconds, OWNER)
        )
        database = await database_id(connection)
        topic, partition_ids = await _settled(connection, plan)
        await _check_free(connection, plan.chain_id, topic)
        # The brokers last: an unsuitable database is reported without them.
        topics = await stack.enter_async_context(connected_topics(kafka, settings.connect_seconds))
        # Before anything is done: a topic that cannot be used leaves no chain.
        topic_is_there = await _is_usable(topics, topic)
        seal = genesis_seal(database, plan.chain_id)
        chain_created = await connection.fetchval(
            SQL["create_chain"], plan.chain_id, seal, topic, _PARTITION, partition_ids
        )
        topic_created = not topic_is_there and await topics.create(topic)
        if not topic_created:
            await topics.check(topic)
    return Creation(
        chain=plan.chain_id, topic=topic, chain_created=chain_created, topic_created=topic_created
    )


async def _settled(connection: Connection, plan: ChainPlan) -> tuple[str, int]:
    """Return topic and partition size: as planned, or as the chain was created before."""
    row = await connection.fetchrow(SQL["chain"], plan.chain_id)
    if row is None:
        topic = plan.topic if plan.topic is not None else default_topic(plan.chain_id)
        return topic, plan.partition_ids or PARTITION_IDS
    owner = f"what chain {plan.chain_id} was created with"
    if plan.topic not in (None, row["topic"]):
        raise SettingError("--topic", plan.topic, f"{row['topic']}, {owner}")
    if plan.partition_ids not in (None, row["partition_ids"]):
        raise SettingError(
            "--partition-ids", plan.partition_ids, f"{row['partition_ids']}, {owner}"
        )
    return row["topic"], row["partition_ids"]


async def _check_free(connection: Connection, chain_id: int, topic: str) -> None:
    owner = await connection.fetchval(SQL["topic_owner"], topic)
    if owner not in (None, chain_id):
        raise SettingError("--topic", topic, f"a topic of its own (this one is chain {owner}'s)")


async def _is_usable(topics: Topics, topic: str) -> bool:
    """Return whether the topic is there. Raises TopicError when it is, but cannot carry a chain."""
    if not await topics.is_there(topic):
        return False
    await topics.check(topic)
    return True


async def _list(settings: Settings, *, with_rows: bool) -> list[dict[str, object]]:
    async with connected_to(
        settings.database_dsn(), settings.connect_seconds, AUDITOR
    ) as connection:
        await database_id(connection)
        chains = await connection.fetch(SQL["chains"])
        counts = await connection.fetch(SQL["row_counts"]) if with_rows else []
    rows = {row["chain_id"]: row["rows"] for row in counts}
    found: list[dict[str, object]] = []
    for chain in chains:
        shown: dict[str, object] = {
            "chain": chain["chain_id"],
            "epoch": chain["epoch"],
            "head_persisted": chain["last_id"],
            "head_published": chain["published_id"],
            "topic": chain["topic"],
            "created": f"{chain['created_at']:%Y-%m-%dT%H:%M:%SZ}",
        }
        if with_rows:
            shown["rows"] = rows.get(chain["chain_id"], 0)
        found.append(shown)
    return found


# -- topics ---------------------------------------------------------------------------------------

NAME_CHARACTERS_MAX: Final = 249
"""Kafka's own bound: with the partition's number the name becomes the name of a folder."""

ACT_SECONDS: Final = 30.0
"""Deadline of one act on the broker, the creation of a topic being the longest."""

_CLOSE_SECONDS: Final = 2.0

_RECORD_OVERHEAD_BYTES: Final = 4_096
"""What Kafka adds to one record: below 100 bytes, with room for headers to come."""

_RETENTION_MS: Final = 7 * 24 * 3_600 * 1_000
"""A week. The topic is the fast path only: a receiver that is further behind reads the database.
Long enough that a verifier can compare the topic with the database after a long weekend."""

TOPIC_SETTINGS: Final[Mapping[str, str]] = {
    # A compacted topic would lose frames: they have no key, and each one counts.
    "cleanup.policy": "delete",
    "retention.ms": str(_RETENTION_MS),
    # The broker's clock: a wrong one of a producer would remove records early, or keep them.
    "message.timestamp.type": "LogAppendTime",
    # Room for every frame that the protocol allows, so that `frame_bytes_max` may be raised later.
    "max.message.bytes": str(FRAME_BYTES_MAX + _RECORD_OVERHEAD_BYTES),
}

_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


class Topics:
    """The topics of one broker."""

    def __init__(self, admin: AIOKafkaAdminClient, kafka: KafkaConfig) -> None:
        self._admin = admin
        self._kafka = kafka

    async def is_there(self, topic: str) -> bool:
        """Return whether `topic` exists. Raises ConnectError where this login may not know."""
        return (await self.described(topic)).is_there

    async def check(self, topic: str) -> None:
        """Raise TopicError unless the existing `topic` can carry a chain."""
        found = await self.described(topic)
        if found.partitions != 1:
            expected = f"one with exactly 1 partition (it has {found.partitions})"
            raise TopicError("topic", topic, expected)
        policy = found.settings.get("cleanup.policy", "")
        if "compact" in policy:
            raise TopicError(f"cleanup.policy of topic {topic}", policy, "delete")

    async def create(
        self,
        topic: str,
        *,
        partitions: int = 1,
        replicas: int | None = None,
        settings: Mapping[str, str] = TOPIC_SETTINGS,
        is_dry_run: bool = False,
    ) -> bool:
        """Create `topic`; return False when somebody else was faster. As `create_topic`."""
        from orderchain.clients.topics import create_topic

        async with asyncio.timeout(ACT_SECONDS):
            return await create_topic(
                self._admin,
                self._kafka,
                topic,
                partitions=partitions,
                replicas=replicas,
                settings=settings,
                is_dry_run=is_dry_run,
            )

    async def described(self, topic: str) -> TopicDescription:
        """Describe `topic`; one that does not exist has no partition."""
        from orderchain.clients.topics import describe_topic

        async with asyncio.timeout(ACT_SECONDS):
            return await describe_topic(self._admin, self._kafka, topic)


@asynccontextmanager
async def connected_topics(
    kafka: str | KafkaConfig, connect_seconds: float
) -> AsyncIterator[Topics]:
    """Hold a connection to the broker. Raises ConnectError or RetryError when none answers."""
    from orderchain.clients.kafka import close_client, make_admin, start_client
    from orderchain.clients.kafka_config import KafkaConfig
    from orderchain.clients.kafka_probe import connecting

    config = KafkaConfig.of(kafka)
    admin = make_admin(config, "topics", request_timeout_ms=int(ACT_SECONDS * 1_000))
    try:
        async with connecting(config, connect_seconds):
            await start_client(admin)
        yield Topics(admin, config)
    finally:
        await close_client(admin, _CLOSE_SECONDS)


def check_topic_name(topic: str, flag: str = "--topic") -> str:
    """Return `topic` when Kafka would take it. Raises SettingError, which names `flag`."""
    if len(topic) > NAME_CHARACTERS_MAX or topic in {".", ".."} or _NAME.fullmatch(topic) is None:
        shown = topic if len(topic) <= NAME_CHARACTERS_MAX else topic[:20] + "..."
        expected = f"1 to {NAME_CHARACTERS_MAX} of the characters A-Z a-z 0-9 . _ -"
        raise SettingError(flag, shown, expected)
    return topic
