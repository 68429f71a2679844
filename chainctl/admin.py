"""Functions for a DBA: apply the schema, make chains with their topics, and topics of intakes.

`chainctl schema apply`, `chain create` and `topic create` call them, and so may a test, or a
program that sets a system up. They leave alone what is there already.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from chain_kernel.errors import SchemaError, SettingError, TopicError
from chain_kernel.frame import default_topic
from chain_kernel.limits import CHAIN_ID_MAX
from chain_kernel.seal import genesis_seal
from chain_kernel.sql import require_version
from chainctl.database import SQL, database_id, require_server
from chainctl.schema.parts import PARTS, read_version
from chainctl.topics import check_topic_name, connected_topics

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from chain_kernel.clients.kafka_config import KafkaConfig
    from chainctl.database import Connection
    from chainctl.schema.parts import SchemaPart

CONNECT_SECONDS: Final = 10.0
"""Deadline of a connection to the brokers."""

# -- the schema ------------------------------------------------------------------------------------

_OBJECT_IN_THE_WAY: Final = frozenset({"42P07", "42723", "42710"})
"""A table, a function, an object of that name exists."""


async def apply_schema(connection: Connection, parts: Iterable[str] = ("chain",)) -> list[str]:
    """Bring `parts` into the database of `connection`, each in a transaction of its own; return
    those that were not there.

    Args:
        connection: asyncpg's, of the role `orderchain_owner`, or of one that has CREATEROLE and
            owns the database.
        parts: of `chain`, `outbox`, `inbox`, `callback` and `decision`.

    Raises:
        SettingError: a part is unknown.
        SchemaError: a part is of another version, or other objects have its names.
        ConnectError: the server is too old, or of another encoding.
    """
    await require_server(connection)
    done = []
    for name in parts:
        if name not in PARTS:
            raise SettingError("parts", name, f"one of {', '.join(PARTS)}")
        if await _apply(connection, PARTS[name]):
            done.append(name)
    return done


async def _apply(connection: Connection, part: SchemaPart) -> bool:
    async with connection.transaction():
        # Before the lock, which not everybody may take: a schema that is there needs no right.
        if await _is_there(connection, part):
            return False
        await connection.execute(SQL["lock_schema"])
        if await _is_there(connection, part):
            return False
        await _execute_schema(connection, part)
        return True


async def _is_there(connection: Connection, part: SchemaPart) -> bool:
    """Return whether the part is there. Raises SchemaError where it is of another version."""
    if (version := await read_version(connection, part)) is None:
        return False
    require_version(version._asdict(), part.version, part.name)
    return True


async def _execute_schema(connection: Connection, part: SchemaPart) -> None:
    from chain_kernel.clients.postgres_errors import sqlstate_of

    try:
        await connection.execute(part.text())
    except Exception as error:
        if sqlstate_of(error) in _OBJECT_IN_THE_WAY:
            expected = "a schema public without objects of these names"
            raise SchemaError("database", str(error), expected) from error
        raise


# -- chains ----------------------------------------------------------------------------------------

PARTITION_IDS: Final = 10_000_000
"""Ids of one partition of the table: about 2 GB at orders of 130 bytes. Small enough to be dropped
and vacuumed in one go, large enough that a chain has tens of them and not thousands."""

PARTITION_IDS_MAX: Final = 2**52
"""Fifty days of time-based ids, 2^20 of them per millisecond; a day is 86,400,000 * 2^20. Far
below 2^63 divided by the few partitions that are made ahead."""

_PARTITION: Final = 0
"""A topic of a chain has one partition, so there is only this one."""


class ChainCreation(Struct, frozen=True, kw_only=True):
    """The result of `create_chain`."""

    chain: int
    topic: str
    chain_created: bool
    topic_created: bool


async def create_chain(
    connection: Connection,
    kafka: str | KafkaConfig | None,
    chain_id: int,
    *,
    topic: str | None = None,
    partition_ids: int | None = None,
    connect_seconds: float = CONNECT_SECONDS,
) -> ChainCreation:
    """Make a chain with its topic: the chain's row first, then its topic.

    The row decides which chain owns the topic, so two concurrent creations cannot end with one
    topic for two chains. A crash between the two steps leaves a chain without a topic. The next
    call makes it; until then, the sequencer refuses to start.

    Args:
        connection: asyncpg's, of the role `orderchain_owner`, and in no transaction.
        kafka: a KafkaConfig, or the plaintext bootstrap servers. None: no topic is made, and the
            chain can be led without a broker; a later call with one makes the topic.
        topic: `orderchain.N` by default.
        partition_ids: the ids that one partition of the table spans.

    Raises:
        SettingError: a number, name or size cannot be, or is not what the chain was created with.
        TopicError: the topic exists and cannot carry a chain.
        SchemaError: the database has no such schema, or one of another version.
        ConnectError: a server refuses the login, or its certificate does not hold.
        RetryError: no broker answers.
    """
    _check_chain(chain_id, topic, partition_ids)
    async with AsyncExitStack() as stack:
        database = await database_id(connection)
        topic, partition_ids = await _settled(connection, chain_id, topic, partition_ids)
        owner = await connection.fetchval(SQL["topic_owner"], topic)
        if owner not in (None, chain_id):
            expected = f"one of its own (this one is chain {owner}'s)"
            raise SettingError(f"topic of chain {chain_id}", topic, expected)
        topics, topic_created = None, False
        if kafka is not None:
            # The brokers last: an unsuitable database is reported without them.
            topics = await stack.enter_async_context(connected_topics(kafka, connect_seconds))
            # Before anything is done: a topic that cannot be used leaves no chain.
            is_there = (await topics.described(topic)).is_there
            if is_there:
                await topics.check(topic)
            topic_created = not is_there
        seal = genesis_seal(database, chain_id)
        chain_created = await connection.fetchval(
            SQL["create_chain"], chain_id, seal, topic, _PARTITION, partition_ids
        )
        if topics is not None:
            topic_created = topic_created and await topics.create(topic)
            if not topic_created:
                await topics.check(topic)
    return ChainCreation(
        chain=chain_id, topic=topic, chain_created=chain_created, topic_created=topic_created
    )


def _check_chain(chain_id: int, topic: str | None, partition_ids: int | None) -> None:
    if not 1 <= chain_id <= CHAIN_ID_MAX:
        raise SettingError("chain_id", chain_id, f"a number from 1 to {CHAIN_ID_MAX}")
    if topic is not None:
        check_topic_name(topic)
    if partition_ids is not None and not 1 <= partition_ids <= PARTITION_IDS_MAX:
        raise SettingError("partition_ids", partition_ids, f"from 1 to {PARTITION_IDS_MAX}")


async def _settled(
    connection: Connection, chain_id: int, topic: str | None, partition_ids: int | None
) -> tuple[str, int]:
    """Return topic and partition size: as asked for, or as the chain was created before."""
    row = await connection.fetchrow(SQL["chain"], chain_id)
    if row is None:
        return topic or default_topic(chain_id), partition_ids or PARTITION_IDS
    for name, asked in {"topic": topic, "partition_ids": partition_ids}.items():
        if asked not in (None, row[name]):
            expected = f"{row[name]}, what it was created with"
            raise SettingError(f"{name} of chain {chain_id}", asked, expected)
    return row["topic"], row["partition_ids"]


# -- topics of intakes -----------------------------------------------------------------------------

_POLICY: Final = "cleanup.policy"

INTAKE_SETTINGS: Final[Mapping[str, str]] = {
    # Each record is an order. A compacted topic keeps the last one of a key alone.
    _POLICY: "delete",
    # Two weeks: records wait here while no sequencer runs, and one that was deleted stops the
    # intake forever.
    "retention.ms": str(14 * 24 * 3_600 * 1_000),
}


async def create_topic(
    kafka: str | KafkaConfig,
    name: str,
    *,
    partitions: int = 1,
    replicas: int | None = None,
    settings: Mapping[str, str] | None = None,
    connect_seconds: float = CONNECT_SECONDS,
) -> bool:
    """Make a topic from which a sequencer takes orders; return False where it is there already.

    By default it has the brokers' number of replicas, and keeps records for two weeks. The topic of
    a chain is made with the chain.

    Args:
        kafka: a KafkaConfig, or the plaintext bootstrap servers.
        settings: of the topic, by Kafka's own names.

    Raises:
        SettingError: Kafka does not take the name.
        TopicError: no intake could use the topic.
        ConnectError: the brokers refuse the login, or their certificate does not hold.
        RetryError: no broker answers.
    """
    from sequencer import TopicIntakeConfig, check_intake_topic

    check_topic_name(name)
    asked = {**INTAKE_SETTINGS, **(settings or {})}
    if "compact" in asked[_POLICY]:
        raise TopicError(f"{_POLICY} of topic {name}", asked[_POLICY], "delete")
    async with connected_topics(kafka, connect_seconds) as topics:
        is_created = await topics.create(
            name, partitions=partitions, replicas=replicas, settings=asked
        )
    intake = TopicIntakeConfig(kafka=kafka, topic=name, connect_seconds=connect_seconds)
    await check_intake_topic(intake)
    return is_created
