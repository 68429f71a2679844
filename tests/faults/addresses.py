"""Settings by which a sequencer reaches a server through a proxy."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from local_stack import KafkaServer, PostgresServer
from sequencer import Sequencer, SequencerConfig, open_sequencer
from tests.builders.created_chain import Chain
from tests.builders.listeners import proxied_ports

from .proxy import Proxy, kafka_requests, postgres_requests


def through(chain: Chain, proxy: Proxy, **settings: object) -> SequencerConfig:
    """Return the settings by which a sequencer reaches the database through `proxy`."""
    assert isinstance(chain.config.database, str)
    address, _, name = chain.config.database.rpartition("/")
    host, _, _ = address.rpartition(":")
    dsn = f"{host}:{proxy.port}/{name}?sslmode=disable"
    return chain.with_settings(database=dsn, **settings)


def proxy_before(kafka: KafkaServer) -> Proxy:
    """Return a proxy on the port that the broker names to the clients of its second listener."""
    port, proxy_port = proxied_ports(kafka.config)
    return Proxy(port, kafka_requests, port=proxy_port)


@asynccontextmanager
async def led_through(
    chain: Chain, postgres: PostgresServer
) -> AsyncIterator[tuple[Proxy, Sequencer]]:
    """A sequencer that leads the chain, and the proxy by which it reaches the database."""
    async with (
        Proxy(postgres.config.port, postgres_requests) as proxy,
        open_sequencer(through(chain, proxy)) as sequencer,
    ):
        yield proxy, sequencer
