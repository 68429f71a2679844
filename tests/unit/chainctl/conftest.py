from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from chainctl.logs import PACKAGES

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Commands set logging up for a process of their own; the tests share one."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    levels = {name: logging.getLogger(name).level for name in PACKAGES}
    yield
    root.handlers[:], root.level = handlers, level
    for name, own in levels.items():
        logging.getLogger(name).setLevel(own)
