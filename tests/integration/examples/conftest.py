import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chainctl.admin import create_chain
from tests.opened import connected

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture
async def chain_id(stack_environment: dict[str, str]) -> int:
    """A chain of this test's database; its number names the topic, which outlives the test."""
    chain_id = int.from_bytes(os.urandom(3)) + 1
    async with connected(stack_environment["CHAINCTL_DATABASE"]) as admin:
        await create_chain(admin, stack_environment["CHAINCTL_KAFKA"], chain_id)
    return chain_id


@pytest.fixture
def load() -> Callable[[str], Any]:
    """Imports an example by its name: the folder is no package."""

    def load(name: str) -> Any:
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
        return loaded

    return load
