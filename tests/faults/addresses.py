"""Settings by which a sequencer reaches a server through a proxy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.builders.listeners import proxied_ports

from .proxy import Proxy, kafka_requests

if TYPE_CHECKING:
    from local_stack import KafkaServer
    from sequencer import SequencerConfig

    from .inspector import Chain


def through(chain: Chain, proxy: Proxy, **settings: object) -> SequencerConfig:
    """Return the settings by which a sequencer reaches the database through `proxy`."""
    assert isinstance(chain.config.database, str)
    address, _, name = chain.config.database.rpartition("/")
    host, _, _ = address.rpartition(":")
    dsn = f"{host}:{proxy.port}/{name}?sslmode=disable"
    return chain.with_settings(database=dsn, **settings)


def proxy_before(kafka: KafkaServer) -> Proxy:
    """Return a proxy on the port that the broker tells the clients of its second listener."""
    port, proxy_port = proxied_ports(kafka.config)
    return Proxy(port, kafka_requests, port=proxy_port)
