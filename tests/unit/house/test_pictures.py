"""The pictures of `docs/architecture.md` show the house as it is."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[3]


def test_pictures_are_those_of_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    pictures = importlib.import_module("tools.pictures")
    drawn = pictures.drawn()
    assert pictures.in_page(pictures.PAGE.read_text()) == drawn, "python -m tools.pictures --write"
    assert all(picture.count("-->") > 5 for picture in drawn.values())
