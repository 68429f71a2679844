"""Every command of the runbooks is one that `chainctl` takes, and every link leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.command_lines import blocks, command_lines, refusal_of

DOCS = Path(__file__).parents[3] / "docs"
RUNBOOKS = sorted(path for path in (DOCS / "runbooks").glob("*.md") if path.name != "README.md")
PAGES = [*RUNBOOKS, DOCS / "runbooks" / "README.md", *(
    DOCS / name for name in ("deploy.md", "backup.md", "capacity.md", "security.md")
)]  # fmt: skip

SECTIONS = [
    "How you see it", "What it means", "What to do", "How you know that it is over",
]  # fmt: skip


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_commands_of_the_page_are_taken(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    inline = re.findall(r"`(chainctl [^`]*--chain [^`]*)`", page)
    for text in (*blocks(page), *(each for each in inline if "..." not in each)):
        for words in command_lines(text):
            assert refusal_of(words) is None, f"chainctl {' '.join(words)}"


@pytest.mark.parametrize("path", RUNBOOKS, ids=lambda path: path.stem)
def test_runbook_has_the_four_sections_and_no_sql(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    assert re.findall(r"^## (.*)$", page, flags=re.MULTILINE) == SECTIONS
    assert "chainctl " in page.partition("## What it means")[0]
    assert not re.search(r"\b(SELECT|UPDATE|DELETE|INSERT)\b", page)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_links_of_the_page_lead_somewhere(path: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text(encoding="utf-8")):
        if "://" not in link:
            assert (path.parent / link).exists(), link


def test_list_of_the_runbooks_names_each() -> None:
    page = (DOCS / "runbooks" / "README.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\]\(([a-z-]+\.md)\)", page)) == [each.name for each in RUNBOOKS]
