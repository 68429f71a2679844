"""A real PostgreSQL and a real Kafka on loopback, for the demo, the tests and the benchmarks."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from local_stack.folders import default_directory
    from local_stack.kafka import KafkaServer, KafkaServerConfig
    from local_stack.postgres import PostgresServer, PostgresServerConfig
    from local_stack.stack import LocalStack, StackStatus

__all__ = [
    "KafkaServer", "KafkaServerConfig", "LocalStack", "PostgresServer", "PostgresServerConfig",
    "StackStatus", "default_directory",
]  # fmt: skip

_HOMES: Final = {
    "KafkaServer": "kafka",
    "KafkaServerConfig": "kafka",
    "LocalStack": "stack",
    "PostgresServer": "postgres",
    "PostgresServerConfig": "postgres",
    "StackStatus": "stack",
    "default_directory": "folders",
}
"""The module of each name. A name is imported when it is first used: pytest loads our plugin in
every project of an environment, and must not pay for servers that it does not start."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
