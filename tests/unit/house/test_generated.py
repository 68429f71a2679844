"""What is generated of the documents shows the code as it is."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tools import metrics, permissions, pictures


@pytest.mark.parametrize(
    ("page", "written", "command"),
    [
        (metrics.PAGE, metrics.with_table, "python -m tools.metrics"),
        (permissions.PAGE, permissions.with_tables, "python -m tools.permissions"),
    ],
    ids=["operations", "permissions"],
)
def test_tables_of_a_page_are_those_of_the_code(
    page: Path, written: Callable[[str], str], command: str
) -> None:
    text = page.read_text(encoding="utf-8")
    assert written(text) == text, command


def test_pictures_are_those_of_the_code() -> None:
    drawn = pictures.drawn()
    stored = {path.stem: path.read_text() for path in pictures.FOLDER.glob("*.svg")}
    assert stored == drawn, "make pictures"
    assert all(picture.count("url(#tip)") > 5 for picture in drawn.values())
