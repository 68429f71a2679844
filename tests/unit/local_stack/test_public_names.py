from __future__ import annotations

import local_stack


def test_public_names_are_these() -> None:
    assert sorted(local_stack.__all__) == [
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
    assert all(hasattr(local_stack, name) for name in local_stack.__all__)
