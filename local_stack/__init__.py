"""A real PostgreSQL and a real Kafka on loopback, for the demo, the tests and the benchmarks."""

from __future__ import annotations

from local_stack.errors import (
    FetchFailed,
    FolderUnusable,
    ServerFailed,
    SetupNeeded,
    StackError,
    StackMissing,
    StatementFailed,
)
from local_stack.folders import default_cache_directory, default_directory
from local_stack.kafka import KafkaConfig, KafkaServer, ProxiedListener
from local_stack.postgres import PostgresConfig, PostgresServer
from local_stack.progress import Progress, silent
from local_stack.stack import LocalStack, ServerStatus, StackStatus

__all__ = [
    "FetchFailed",
    "FolderUnusable",
    "KafkaConfig",
    "KafkaServer",
    "LocalStack",
    "PostgresConfig",
    "PostgresServer",
    "Progress",
    "ProxiedListener",
    "ServerFailed",
    "ServerStatus",
    "SetupNeeded",
    "StackError",
    "StackMissing",
    "StackStatus",
    "StatementFailed",
    "default_cache_directory",
    "default_directory",
    "silent",
]
