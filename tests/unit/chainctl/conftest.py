from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.command_call import logging_as_before

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    with logging_as_before():
        yield
