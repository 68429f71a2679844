import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"


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
