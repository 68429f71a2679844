"""The site: built without a warning; a browser that shows it fetches nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import orderchain

ROOT = Path(__file__).parents[3]
LOADS = re.compile(r'<(?:script|img|iframe)[^>]+src="(?://|https?:)|<link[^>]+href="(?://|https?:)')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    """No mermaid either: the theme would fetch its script where a page has such a block."""
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 50
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not LOADS.search(text), page.name
        assert 'class="mermaid"' not in text, page.name
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(?:https?:)?//", sheet.read_text(encoding="utf-8"))


def test_reference_has_every_name_of_the_front_door(site: Path) -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in (site / "reference").glob("*.html"))
    for name in orderchain.__all__:
        assert f'id="orderchain.{name}"' in text, name
    # A docstring, and a field with its own.
    assert "Which receiver of which chain this is" in text
    assert "The name under which the checkpoint is stored." in text
