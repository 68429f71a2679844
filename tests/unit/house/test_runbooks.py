"""The runbooks have one form, and every link of every page leads somewhere.

`test_snippets` looks at their commands.
"""

import re
from pathlib import Path

from tests.cases import case
from tests.pages import PAGES, ROOT

RUNBOOKS = sorted(
    path for path in (ROOT / "docs" / "runbooks").glob("*.md") if path.name != "README.md"
)
SECTIONS = [
    "How you see it", "What it means", "What to do", "How you know that it is over",
]  # fmt: skip


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and MkDocs make them."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_runbook_has_the_four_sections_and_no_sql() -> None:
    for path in RUNBOOKS:
        with case(path):
            page = path.read_text(encoding="utf-8")
            assert re.findall(r"^## (.*)$", page, flags=re.MULTILINE) == SECTIONS
            assert "chainctl " in page.partition("## What it means")[0]
            assert not re.search(r"\b(SELECT|UPDATE|DELETE|INSERT)\b", page)


def test_old_primary_is_away_before_another_server_is_promoted() -> None:
    """One that comes back says that it is the primary, and processes would believe it."""
    drill = (ROOT / "docs" / "failover-drill.md").read_text(encoding="utf-8")
    lost = drill.partition("## 5. A primary that is lost")[2].partition("\n## ")[0]
    taken_away, _, rest = lost.partition("systemctl disable --now postgresql.service")
    assert "promote" not in taken_away.partition("only then promote")[0]
    assert "still says that it is the primary" in rest.partition("chainctl status")[0]
    restored = (ROOT / "docs" / "runbooks" / "restored-backup.md").read_text(encoding="utf-8")
    assert "old primary" in restored.partition("promote the standby")[0]


def test_list_of_the_runbooks_names_each() -> None:
    page = (ROOT / "docs" / "runbooks" / "README.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\]\(([a-z-]+\.md)\)", page)) == [each.name for each in RUNBOOKS]


def test_links_of_the_pages_lead_somewhere() -> None:
    for page in [*PAGES, *sorted((ROOT / "docs" / "decisions").glob("*.md"))]:
        with case(page):
            for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
                name, _, anchor = link.partition("#")
                if "://" in link:
                    continue
                target = page.parent / name if name else page
                assert target.exists(), link
                if anchor and target.suffix == ".md":
                    assert anchor in anchors_of(target), link
