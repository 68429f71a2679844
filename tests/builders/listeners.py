"""Further listeners of a Kafka: for clients with TLS or a login, and for a proxy in between."""

from collections.abc import Mapping

import msgspec

from local_stack.kafka import KafkaServerConfig
from local_stack.process import LOOPBACK

PROXIED = "PROXIED"


class Listener(msgspec.Struct, frozen=True, kw_only=True):
    """One listener beside the broker's own two."""

    name: str
    """Kafka's own name for it: letters and digits."""
    port: int
    protocol: str = "PLAINTEXT"
    advertised: str
    """Where the broker sends clients: `host:port`, which they compare with its certificate."""
    settings: Mapping[str, str] = {}
    """Settings of this listener alone, such as `ssl.keystore.key`."""


def with_listeners(config: KafkaServerConfig, *more: Listener) -> KafkaServerConfig:
    """Return `config` with `more` listeners."""
    plain = f"PLAINTEXT://{LOOPBACK}:{config.port}"
    listening = [plain, f"CONTROLLER://{LOOPBACK}:{config.controller_port}"]
    protocols = ["PLAINTEXT:PLAINTEXT", "CONTROLLER:PLAINTEXT"]
    settings = {
        "listeners": ",".join(
            listening + [f"{each.name}://{LOOPBACK}:{each.port}" for each in more]
        ),
        "advertised.listeners": ",".join(
            [plain] + [f"{each.name}://{each.advertised}" for each in more]
        ),
        "listener.security.protocol.map": ",".join(
            protocols + [f"{each.name}:{each.protocol}" for each in more]
        ),
    }
    for each in more:
        for name, value in each.settings.items():
            settings[f"listener.name.{each.name.lower()}.{name}"] = value
    return msgspec.structs.replace(config, settings={**config.settings, **settings})


def with_proxy(config: KafkaServerConfig, port: int, proxy_port: int) -> KafkaServerConfig:
    """Return `config` with a listener at `port` whose clients are sent to a proxy.

    Clients connect to the address that the broker advertises, so a proxy is only in between when
    the broker names it.
    """
    proxied = Listener(name=PROXIED, port=port, advertised=f"{LOOPBACK}:{proxy_port}")
    return with_listeners(config, proxied)


def proxied_ports(config: KafkaServerConfig) -> tuple[int, int]:
    """Return the port of the listener for a proxy, and the one where the proxy has to listen."""
    listening, advertised = (
        int(config.settings[name].rpartition(f"{PROXIED}://{LOOPBACK}:")[2])
        for name in ("listeners", "advertised.listeners")
    )
    return listening, advertised
