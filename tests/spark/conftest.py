"""One Spark for all tests, and chains to look at."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from chain_verifier.session import open_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with open_session(None) as session:
        yield session


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
