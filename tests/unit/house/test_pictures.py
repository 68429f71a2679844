"""The pictures of the documents show the code as it is."""

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
    stored = {path.stem: path.read_text() for path in pictures.FOLDER.glob("*.svg")}
    assert stored == drawn, "make pictures"
    assert all(picture.count("url(#tip)") > 5 for picture in drawn.values())
