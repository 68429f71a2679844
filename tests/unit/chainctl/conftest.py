from collections.abc import Iterator

import pytest

from tests.command_call import logging_as_before


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    with logging_as_before():
        yield
