"""The statements of the operations page for those who look at orders by SQL."""

import re
from pathlib import Path

from chain_kernel.sql import GAP_READER
from tests.stored_pages import store_rows

from .conftest import Connect

PAGE = Path(__file__).parents[3] / "docs" / "operations.md"
ROWS = [(121, 0, "a", 1, b"x"), (122, 121, "b", 2, b"y"), (123, 122, "c", 3, b"z")]
BATCH = """
    INSERT INTO chain_batch VALUES (1, 121, 123, 0, 3, 1, sha256('s'), '2026-07-01 09:00+00')
"""


def statements() -> list[str]:
    section = PAGE.read_text(encoding="utf-8").partition("## Looking at orders by SQL\n")[2]
    sql = section.partition("```sql\n")[2].partition("```")[0]
    return [text for text in re.sub(r"--.*", "", sql).split(";") if text.strip()]


async def test_statements_for_looking_at_orders_find_what_the_page_says(connect: Connect) -> None:
    owner = await connect("postgres")
    await owner.execute(BATCH)
    await store_rows(owner, 1, ROWS, page_rows=2)
    reader = await connect(GAP_READER)
    order, span, count, batch, then = [await reader.fetch(text) for text in statements()]
    assert [tuple(row) for row in order] == [(1, *ROWS[2])]
    assert span == []
    assert count[0][0] == len(ROWS)
    assert (batch[0]["first_id"], batch[0]["last_id"]) == (121, 123)
    assert then[0][0] == 123
