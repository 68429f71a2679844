"""The page that compares: each system in each table, and faults by the names that people search."""

from __future__ import annotations

import re

from tests.sources import ROOT

PAGE = (ROOT / "docs" / "when-to-use-it.md").read_text(encoding="utf-8")
SYSTEMS = (
    "Kafka transactions", "Debezium's outbox", "NATS JetStream", "EventStoreDB / Kurrent", "Marten",
    "pgmq, pgqueuer", "RocketMQ", "Aeron Cluster",
)  # fmt: skip
COMPARED = {
    "order", "a gap", "a duplicate", "fence", "crash between commit and publish", "replay", "audit",
    "cost",
}  # fmt: skip
SEARCHED = (
    "gap in an ordered consumer", "checkpoint beyond the last event",
    "rows that commit late are skipped", "idempotent producer that stays broken",
    "acked writes lost by default",
)  # fmt: skip


def tables() -> list[list[list[str]]]:
    """Return the cells of each table, without the line below its head."""
    found = re.findall(r"(?:^\|.*\|\n)+", PAGE, re.MULTILINE)
    rows = [[row.strip("|").split("|") for row in table.splitlines()] for table in found]
    return [[[cell.strip() for cell in row] for row in (table[0], *table[2:])] for table in rows]


def test_every_system_is_compared_in_every_column() -> None:
    compared = [table for table in tables() if table[0][0] == ""]
    assert {name for head, *_ in compared for name in head[1:]} == COMPARED
    for head, *rows in compared:
        assert [row[0] for row in rows] == ["**orderchain**", *SYSTEMS]
        assert all(len(row) == len(head) and all(row) for row in rows)
    for name in SYSTEMS:
        assert f"\n- **{name}**: " in PAGE, "when it is the better choice"


def test_faults_are_found_by_the_names_that_they_have_elsewhere() -> None:
    (faults,) = [rows for head, *rows in tables() if head == ["there", "here"]]
    for name in SEARCHED:
        (row,) = [row for row in faults if row[0].startswith(name)]
        assert row[1]
