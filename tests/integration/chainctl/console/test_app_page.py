"""The console's page in a real Chromium: it moves, and can be read by everybody."""

import os
import re
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright, expect

from local_stack import KafkaServer
from tests.builders.orders import order_file
from tests.builders.stored_chain import StoredChain
from tests.deadlines import LONG_SECONDS
from tests.integration.chainctl.conftest import Call
from tests.integration.chainctl.console.conftest import CHAIN, Filled, RunningConsole
from tests.integration.chainctl.sizes import FILLED_ROWS
from tests.opened import connected

RunConsole = Callable[..., RunningConsole]
Open = Callable[..., AbstractAsyncContextManager[Page]]

CHROMIUM = shutil.which(os.environ.get("CHROMIUM", "chromium"))
TOKEN = "a-token-of-the-tests-0123456789"
HOSTILE = "<img src=x onerror=\"document.title='taken'\">" + "x" * 120

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium (Debian: apt-get install chromium)"),
]

expect.set_options(timeout=LONG_SECONDS * 1_000)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    """One browser for all pages, since each start takes CPU time; no page shares a context."""
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=sandbox)
        yield browser
        await browser.close()


@pytest.fixture
def open_page(browser: Browser) -> Open:
    """Opens pages in a context of their own; no script of a page may fail, or be forbidden."""

    @asynccontextmanager
    async def open_one(console: RunningConsole, **context: Any) -> AsyncIterator[Page]:
        wrong: list[str] = []
        async with await browser.new_context(**context) as holding:
            holding.set_default_timeout(LONG_SECONDS * 1_000)
            page = await holding.new_page()
            page.on("pageerror", lambda error: wrong.append(str(error)))
            page.on("console", lambda said: wrong.append(said.text))
            await page.goto(console.url)
            yield page
        # What a browser says of an answer that is a refusal is no fault of the page.
        assert [text for text in wrong if not text.startswith("Failed to load resource")] == []

    return open_one


async def live(page: Page) -> None:
    """Wait until the page shows a state of the database."""
    await expect(page.locator("#live")).to_have_attribute("data-state", "live")


def line_of(page: Page, section: str, key: str) -> Any:
    return page.locator(f'#{section} tr[data-key="{key}"]')


# -- what moves ------------------------------------------------------------------------------------


async def test_heads_move_while_orders_are_sequenced(
    run_console: RunConsole, call: Call, settings: dict[str, str], kafka_server: KafkaServer,
    open_page: Open, free_chain: int, tmp_path: Path,
) -> None:  # fmt: skip
    settings = {**settings, "CHAINCTL_KAFKA": kafka_server.bootstrap}
    assert call("chain", "create", free_chain, settings=settings).code == 0
    async with open_page(run_console()) as page:
        line = line_of(page, "chains", str(free_chain))
        await expect(line.locator(".persisted")).to_have_text("0")
        await expect(line).to_contain_text("never led")
        orders = order_file(tmp_path / "o.csv", FILLED_ROWS)
        done = call("sequence", "--chain", free_chain, "--input", orders, settings=settings)
        assert done.code == 0, done
        await expect(line.locator(".persisted")).to_have_text(f"{FILLED_ROWS:,}")
        await expect(line).to_contain_text("handed over")
        # Not by a function of the page: its policy forbids the eval that asking again takes.
        points = page.locator("#chart-orders polyline").first
        await expect(points).to_have_attribute("points", re.compile(r".{21}"))


async def test_page_without_chains_says_how_to_make_one(
    run_console: RunConsole, open_page: Open
) -> None:
    async with open_page(run_console()) as page:
        await live(page)
        await expect(page.locator("#chains")).to_contain_text("chainctl chain create 1")
        await expect(page.get_by_role("status").first).to_have_text("Nothing needs a person")


async def add_chain(database: str, chain_id: int) -> None:
    async with connected(database) as admin:
        await StoredChain.create(admin, chain_id)


async def test_last_report_that_is_not_clean_is_seen_at_once(
    run_console: RunConsole, filled: Filled, open_page: Open, database: str, tmp_path: Path
) -> None:
    await add_chain(database, CHAIN + 1)
    report = tmp_path / "report.html"
    clean = '<title>Chain 1: {}</title><meta name="orderchain-clean" content="{}">'
    report.write_text(clean.format("broken", "no"))
    async with open_page(run_console("--report", report)) as page:
        tile = page.locator("#tile-verified")
        await expect(tile).to_have_text("not clean")
        await expect(tile).to_have_attribute("data-tone", "bad")
        await expect(page.locator("#report")).to_contain_text("not clean Last report")
        link = page.get_by_role("link", name=re.compile("last verification is not clean"))
        assert await link.get_attribute("href") == "#verified"
        report.write_text(clean.format("complete", "yes"))
        await expect(tile).to_have_text("1 of 2 chains")
        await expect(tile).to_have_attribute("data-tone", "warn")
        await expect(link).to_have_count(0)


async def test_what_needs_a_person_leads_to_its_place(
    console: RunningConsole, open_page: Open
) -> None:
    async with open_page(console) as page:
        await expect(page.locator("#notice-list a")).to_have_count(4)
        await expect(page).to_have_title("(4) orderchain console")
        halted = page.get_by_role("link", name=re.compile("it has halted"))
        assert await halted.get_attribute("href") == "#receivers"
        matching = line_of(page, "receivers", f"{CHAIN}/matching")
        await expect(matching).to_contain_text("PrimaryBehind at 50")
        await expect(line_of(page, "chains", str(CHAIN))).to_contain_text("silent for")
        await expect(page.locator("#gaps")).to_contain_text("missing, blocks")
        await expect(page.locator("#verified")).to_contain_text("audit@test")
        await expect(page.locator("#tile-verified")).to_have_text("whole")
        await expect(page.locator("#tile-lag")).to_have_attribute("data-tone", "bad")
        await expect(page.locator("#tile-lag-note")).to_contain_text("every other receiver")


async def test_gone_console_and_gone_database_are_said(
    console: RunningConsole, open_page: Open, database: str, database_name: str
) -> None:
    async with open_page(console) as page:
        await live(page)
        away = page.get_by_role("alert")
        await expect(away).to_be_hidden()
        admin = await asyncpg.connect(database.replace(database_name, "postgres"))
        # Names of databases are no parameters; this one is the tests' own.
        await admin.execute(f"ALTER DATABASE {database_name} ALLOW_CONNECTIONS false")
        await admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1",
            database_name,
        )
        await expect(away).to_contain_text("The database does not answer")
        await expect(line_of(page, "chains", str(CHAIN))).to_be_visible()  # the last state stays
        await admin.execute(f"ALTER DATABASE {database_name} ALLOW_CONNECTIONS true")
        await admin.close()
        await live(page)
        await expect(away).to_be_hidden()
        console.end()
        await expect(away).to_contain_text("The console does not answer")


# -- how it looks ----------------------------------------------------------------------------------


@pytest.fixture
async def hostile(filled: Filled, database: str) -> Filled:
    """Names that try to be more than names, and have no place to be broken."""
    connection = await asyncpg.connect(database)
    await connection.execute("UPDATE chain_head SET owner = $1", HOSTILE)
    await connection.execute("UPDATE receiver_gap SET receiver = $1", HOSTILE)
    await connection.execute(
        "UPDATE receiver_checkpoint SET receiver = $1 WHERE receiver = 'risk'", HOSTILE
    )
    await connection.execute("UPDATE receiver_halt SET detail = $1", HOSTILE)
    await connection.execute("UPDATE chain_lease SET beat_at = now() + interval '1 hour'")
    await connection.close()
    return filled


async def test_names_of_the_database_are_text(
    console: RunningConsole, hostile: Filled, open_page: Open
) -> None:
    async with open_page(console) as page:
        for section in ("chains", "receivers", "gaps"):
            await expect(page.locator(f"#{section}").get_by_text(HOSTILE).first).to_be_visible()
        assert await page.locator("img").count() == 0
        assert "taken" not in await page.title()


async def test_many_chains_have_pages_and_are_found(
    run_console: RunConsole, database: str, open_page: Open
) -> None:
    connection = await asyncpg.connect(database)
    await connection.execute(
        "INSERT INTO chain_head (chain_id, last_seal, topic, partition_ids) "
        "SELECT n, decode(repeat('00', 32), 'hex'), 't' || n, 1000 FROM generate_series(1, 200) n"
    )
    await connection.execute("INSERT INTO chain_lease (chain_id) SELECT chain_id FROM chain_head")
    await connection.close()
    async with open_page(run_console()) as page:
        lines, chains = page.locator("#chains tbody tr"), page.locator("#chains")
        await expect(lines).to_have_count(25)
        await expect(chains).to_contain_text("1 to 25 of 200")
        await chains.get_by_role("button", name="More").click()
        await expect(chains).to_contain_text("26 to 50 of 200")
        await page.get_by_role("searchbox").fill("187")
        await expect(lines).to_have_count(1)
        await expect(lines.first).to_contain_text("t187")
        await page.get_by_role("searchbox").fill("no such chain")
        await expect(chains).to_contain_text("None of them fits the filter")
        await page.get_by_role("searchbox").fill("")
        await page.get_by_label("only what needs a person").check()
        await expect(lines).to_have_count(0)


async def test_browser_asks_for_the_token_where_reading_needs_it(
    run_console: RunConsole, filled: Filled, open_page: Open, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    path.chmod(0o600)
    console = run_console("--host", "0.0.0.0", "--token-file", path, token=TOKEN)  # noqa: S104
    assert console.get("/").status == 401
    given = {"username": "anybody", "password": TOKEN}
    async with open_page(console, http_credentials=given) as page:
        await live(page)
        await expect(line_of(page, "chains", str(filled.chain))).to_be_visible()
