"""The pictures of `docs/architecture.md` show the house as it is."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

TOOLS = Path(__file__).parents[3] / "tools"


def test_pictures_are_those_of_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))
    pictures = importlib.import_module("pictures")
    drawn = pictures.drawn()
    assert pictures.in_page(pictures.PAGE.read_text()) == drawn, "python tools/pictures.py --write"
    assert all(picture.count("-->") > 5 for picture in drawn.values())
