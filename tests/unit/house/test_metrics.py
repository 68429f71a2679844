"""The page on operations names every metric that is exported."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[3]


def test_table_of_the_page_is_that_of_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    table = importlib.import_module("tools.metrics")
    page = table.PAGE.read_text(encoding="utf-8")
    assert table.with_table(page) == page, "python -m tools.metrics"
