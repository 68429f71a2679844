"""A real PostgreSQL and a real Kafka on loopback, for the demo, the tests and the benchmarks."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from local_stack.errors import (
        FetchFailed,
        FolderUnusable,
        ServerFailed,
        SetupNeeded,
        StackError,
        StackMissing,
        StatementFailed,
    )
    from local_stack.folders import ShowLine, default_cache_directory, default_directory
    from local_stack.kafka import KafkaServer, KafkaServerConfig, ProxiedListener, SecuredListener
    from local_stack.postgres import PostgresServer, PostgresServerConfig
    from local_stack.stack import LocalStack, ServerStatus, StackStatus

__all__ = [
    "FetchFailed",
    "FolderUnusable",
    "KafkaServer",
    "KafkaServerConfig",
    "LocalStack",
    "PostgresServer",
    "PostgresServerConfig",
    "ProxiedListener",
    "SecuredListener",
    "ServerFailed",
    "ServerStatus",
    "SetupNeeded",
    "ShowLine",
    "StackError",
    "StackMissing",
    "StackStatus",
    "StatementFailed",
    "default_cache_directory",
    "default_directory",
]

_HOMES: Final = {
    name: module
    for module, names in {
        "errors": (
            "FetchFailed", "FolderUnusable", "ServerFailed", "SetupNeeded", "StackError",
            "StackMissing", "StatementFailed",
        ),
        "folders": ("ShowLine", "default_cache_directory", "default_directory"),
        "kafka": ("KafkaServer", "KafkaServerConfig", "ProxiedListener", "SecuredListener"),
        "postgres": ("PostgresServer", "PostgresServerConfig"),
        "stack": ("LocalStack", "ServerStatus", "StackStatus"),
    }.items()
    for name in names
}  # fmt: skip
"""The module of each name. A name is imported when it is first used: pytest loads our plugin in
every project of an environment, and must not pay for servers that it does not start."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
