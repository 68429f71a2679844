from __future__ import annotations

from pathlib import Path

import outbox

PAGE = Path(__file__).parents[3] / "docs" / "choosing-a-delivery-mode.md"


def test_every_public_name_is_there_and_stands_in_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name in outbox.__all__:
        assert hasattr(outbox, name)
        assert f"`{name}`" in page, name
