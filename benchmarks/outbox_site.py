"""What the benchmarks of the outbox have in common: a database with its tables, and topics."""

from __future__ import annotations

import secrets
from importlib.resources import files
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from benchmarks.chains import connect_to
from orderchain.clients.database_config import DatabaseConfig
from orderchain.clients.kafka import create_topic, make_admin, started
from orderchain.clients.kafka_config import KafkaConfig
from outbox import Destination, save_destinations

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.chains import Site

PAYLOAD = bytes(100)


class OutboxSite(Struct, frozen=True):
    """One database for sender and consumer, and one destination."""

    database: DatabaseConfig
    kafka: KafkaConfig
    destination: Destination


async def make_database(site: Site, name: str) -> DatabaseConfig:
    """Make an empty database, and return where it is."""
    admin = await connect_to(site.admin)
    await admin.execute(f"CREATE DATABASE {name}")
    await admin.close()
    return structs.replace(site.admin, dbname=name)


async def drop_database(site: Site, name: str) -> None:
    """Remove a database: what one arm has left must not cost the next one anything."""
    admin = await connect_to(site.admin)
    await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
    await admin.close()


async def make_topics(kafka: KafkaConfig, topics: Mapping[str, int]) -> None:
    """Make topics, by name, each with its number of partitions."""
    async with started(make_admin(kafka, "benchmark")) as admin:
        for name, count in topics.items():
            await create_topic(admin, kafka, name, partitions=count)


async def make_outbox(site: Site, *, partitions: int = 1) -> OutboxSite:
    """Make a database with the tables of both sides, empty."""
    name = f"outbox_{secrets.token_hex(6)}"
    database = await make_database(site, name)
    connection = await connect_to(database)
    for part in ("schema.sql", "inbox.sql"):
        async with connection.transaction():
            await connection.execute((files("outbox") / "sql" / part).read_text())
    # As the consumers' side makes it.
    await connection.execute("RESET search_path")
    # A consumer's name of its own: else its group would wait until the one before is given up.
    destination = Destination(name="bench", topic=name, consumers=(name,))
    await save_destinations(connection, [destination])
    await connection.close()
    await make_topics(site.kafka, {destination.topic: partitions, destination.confirm_topic: 1})
    return OutboxSite(database, site.kafka, destination)


async def drop_outbox(site: Site, place: OutboxSite) -> None:
    """Remove what `make_outbox` has made in the database."""
    await drop_database(site, place.destination.topic)
