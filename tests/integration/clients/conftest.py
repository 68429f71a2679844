from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.secured_kafka import SecuredKafka, secured_kafka_in

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def secured_kafka(session_folder: Path) -> Iterator[SecuredKafka]:
    """A Kafka with TLS, logins and access control. Tests do not break or stop it."""
    with secured_kafka_in(session_folder) as kafka:
        yield kafka
