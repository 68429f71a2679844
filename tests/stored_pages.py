"""Rows put into pages, and changed there behind the engine's back, as an owner could.

`LET_TAMPER` makes the view `chain_event` writable: a row that is inserted, changed or deleted there
is added to, changed in or taken out of the arrays of its page. So tests say what is done to a row.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import asyncpg

from tests.opened import connected

Row = tuple[int | None, int | None, str | None, int | None, bytes | None]
"""id, pid, key, event_time_ns, payload."""

_STORE = """
    INSERT INTO chain_page (chain_id, first_id, last_id, ids, pids, keys, event_times_ns, payloads)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
"""


async def store_rows(
    connection: asyncpg.Connection, chain_id: int, rows: Sequence[Row], page_rows: int = 1_000
) -> None:
    """Store `rows` of one batch, in pages of `page_rows` at most."""
    for start in range(0, len(rows), page_rows):
        columns = [list(column) for column in zip(*rows[start : start + page_rows], strict=True)]
        ends = (columns[0][0], columns[0][-1])
        await connection.execute(_STORE, chain_id, *ends, *columns)


async def execute(dsn: str, *statements: str) -> list[tuple[Any, ...]]:
    """Do to the database, as its owner, what no role of ours may do, to single rows, too.

    Returns what the last statement finds.
    """
    found: list[Any] = []
    async with connected(dsn) as connection:
        await connection.execute(LET_TAMPER)
        for statement in statements:
            found = await connection.fetch(statement)
    return [tuple(row) for row in found]


def as_owner(settings: Mapping[str, str], *statements: str) -> list[tuple[Any, ...]]:
    """Do the same to the database of a command."""
    return asyncio.run(execute(settings["CHAINCTL_DATABASE"], *statements))


LET_TAMPER = """
CREATE OR REPLACE FUNCTION tamper_page() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    page chain_page;
    place integer;
BEGIN
    IF TG_OP = 'INSERT' THEN
        SELECT * INTO page FROM chain_page
         WHERE chain_id = NEW.chain_id AND first_id <= NEW.id AND last_id >= NEW.id
         ORDER BY last_id LIMIT 1;
        IF NOT FOUND THEN
            INSERT INTO chain_page VALUES
                (NEW.chain_id, NEW.id, NEW.id, ARRAY[NEW.id], ARRAY[NEW.pid], ARRAY[NEW.key],
                 ARRAY[NEW.event_time_ns], ARRAY[NEW.payload]);
            RETURN NEW;
        END IF;
        place := width_bucket(NEW.id, page.ids);
        UPDATE chain_page AS stored
           SET ids = page.ids[:place] || NEW.id || page.ids[place + 1:],
               pids = page.pids[:place] || NEW.pid || page.pids[place + 1:],
               keys = page.keys[:place] || NEW.key || page.keys[place + 1:],
               event_times_ns = page.event_times_ns[:place] || NEW.event_time_ns
                   || page.event_times_ns[place + 1:],
               payloads = page.payloads[:place] || NEW.payload || page.payloads[place + 1:],
               last_id = greatest(page.last_id, NEW.id)
         WHERE stored.chain_id = page.chain_id AND stored.last_id = page.last_id
           AND stored.ids = page.ids;
        RETURN NEW;
    END IF;
    SELECT * INTO STRICT page FROM chain_page
     WHERE chain_id = OLD.chain_id AND OLD.id = ANY (ids) ORDER BY last_id LIMIT 1;
    place := array_position(page.ids, OLD.id);
    IF TG_OP = 'DELETE' AND cardinality(page.ids) = 1 THEN
        DELETE FROM chain_page WHERE chain_id = page.chain_id AND last_id = page.last_id;
        RETURN OLD;
    ELSIF TG_OP = 'DELETE' THEN
        page.ids := page.ids[:place - 1] || page.ids[place + 1:];
        page.pids := page.pids[:place - 1] || page.pids[place + 1:];
        page.keys := page.keys[:place - 1] || page.keys[place + 1:];
        page.event_times_ns := page.event_times_ns[:place - 1] || page.event_times_ns[place + 1:];
        page.payloads := page.payloads[:place - 1] || page.payloads[place + 1:];
    ELSE
        page.ids[place] := NEW.id;
        page.pids[place] := NEW.pid;
        page.keys[place] := NEW.key;
        page.event_times_ns[place] := NEW.event_time_ns;
        page.payloads[place] := NEW.payload;
    END IF;
    UPDATE chain_page
       SET ids = page.ids, pids = page.pids, keys = page.keys,
           event_times_ns = page.event_times_ns, payloads = page.payloads,
           first_id = page.ids[1], last_id = page.ids[cardinality(page.ids)]
     WHERE chain_id = page.chain_id AND last_id = page.last_id;
    RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
END
$$;
CREATE OR REPLACE TRIGGER tamper INSTEAD OF INSERT OR UPDATE OR DELETE ON chain_event
    FOR EACH ROW EXECUTE FUNCTION tamper_page();
"""
"""Run by a superuser or the owner; it may be run again."""


LET_LACK_VALUES = """
ALTER TABLE chain_page
    DROP CONSTRAINT chain_page_lengths,
    DROP CONSTRAINT chain_page_no_null,
    DROP CONSTRAINT chain_page_ends,
    ALTER COLUMN ids DROP NOT NULL,
    ALTER COLUMN keys DROP NOT NULL;
"""
"""As an owner could: then a page may have NULLs, and arrays of other lengths or bounds."""
