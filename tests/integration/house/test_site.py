"""The site: built without a warning, and read from its folder, without a server and a network."""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from playwright.async_api import async_playwright, expect

import orderchain
import outbox
from tests.deadlines import LONG_SECONDS
from tests.programs import output_of

ROOT = Path(__file__).parents[3]
CHROMIUM = shutil.which(os.environ.get("CHROMIUM", "chromium"))
LOADS = re.compile(r'<(?:script|img|iframe)[^>]+src="(?://|https?:)|<link[^>]+href="(?://|https?:)')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built where neither Spark nor a driver can be imported."""
    folder, absent = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("absent")
    for name in ("aiokafka", "asyncpg", "pyspark"):
        (absent / f"{name}.py").write_text(f"raise SystemExit('{name} was imported')")
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(absent)}
    build = (sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder)
    output_of(*build, cwd=ROOT, env=environment)
    return folder


@pytest.fixture
def pages_with_pictures(site: Path) -> list[Path]:
    return [path for path in site.rglob("*.html") if "<img" in path.read_text(encoding="utf-8")]


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 50
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not LOADS.search(text), page.name
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(?:https?:)?//", sheet.read_text(encoding="utf-8"))


def test_llms_txt_leads_to_every_page_of_the_navigation(site: Path) -> None:
    text = (site / "llms.txt").read_text(encoding="utf-8")
    assert text.startswith("# orderchain\n\n> Sequenced-order delivery")
    named = set(re.findall(r"[\w./-]+\.md$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(set(links)) == len(named)
    assert [link for link in links if not (site / link).is_file()] == []


def test_reference_has_every_name_of_both_doors(site: Path) -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in (site / "reference").glob("*.html"))
    names = [f"orderchain.{name}" for name in orderchain.__all__ if name != "errors"]
    for name in [*names, "chain_kernel.errors", *(f"outbox.{name}" for name in outbox.__all__)]:
        assert f'id="{name}"' in text, name
    # A docstring, and a field with its own.
    assert "A receiver of one chain" in text
    assert "The name under which the checkpoint is stored." in text


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium (Debian: apt-get install chromium)")
async def test_word_is_found_and_pictures_load_from_the_folder(
    site: Path, pages_with_pictures: list[Path]
) -> None:
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    wrong: list[str] = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=sandbox)
        context = await browser.new_context(offline=True, viewport={"width": 1280, "height": 900})
        page = await context.new_page()
        page.set_default_timeout(LONG_SECONDS * 1_000)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("requestfailed", lambda request: wrong.append(request.url))

        assert pages_with_pictures
        for path in pages_with_pictures:
            await page.goto(path.as_uri())
            loaded = "images => images.every(each => each.complete && each.naturalWidth > 0)"
            assert await page.locator("article img").evaluate_all(loaded), path.name

        await page.goto((site / "index.html").as_uri())
        drawing = page.locator("pre", has_text="matching service").first
        assert max(len(line) for line in (await drawing.inner_text()).splitlines()) <= 80
        await page.locator("input[name=query]").press_sequentially("PrimaryBehind")
        found = page.locator(".md-search-result__link", has_text="PrimaryBehind")
        await expect(found.first).to_be_visible(timeout=LONG_SECONDS * 1_000)
        await found.first.click()
        await expect(page.locator("article mark").first).to_have_text("PrimaryBehind")
        await browser.close()
    assert wrong == []
