"""States as of moments over PostgreSQL: those of a fold of all orders, from proven rows."""

import asyncio
import json
import lzma
import os
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from chain_kernel.clock import time_of
from chain_kernel.errors import BatchDamaged, RetryError, RowsArchived
from chain_kernel.model import ChainPosition, Event, Run, Snapshot
from chain_kernel.sql import GAP_READER
from chain_verifier.dataframe.fold import digest_of
from chain_verifier.local.state import StateAsOf
from chainctl.main import main
from gapfill import GapReader, GapReaderConfig, PreferredSources
from orderchain import FileSnapshotStore, Fold, ReceiverConfig, state_as_of
from tests.deadlines import LONG_SECONDS
from tests.integration.chain_verifier.dataframe.books import (
    BOOKS,
    Book,
    side_of,
    start,
    step,
    step_of_columns,
)
from tests.integration.chain_verifier.planted_faults import CHAIN_ID, chain_of, events_of
from tests.integration.chain_verifier.stored_rows import (
    BATCH_ROWS,
    FIRST_COMMIT,
    batches_of,
    store,
)
from tests.stored_pages import execute
from tests.tuned import tuned

ROWS = chain_of(random.Random(57), 130)
EVENTS = events_of(ROWS)
IDS = [event.id for event in EVENTS]
HEAD = IDS[-1]
BATCH_ENDS = [batch[-1].id or 0 for batch in batches_of(ROWS)]
PLACES = sorted({IDS[0], IDS[37], IDS[38] - 1, BATCH_ENDS[5] - 1, BATCH_ENDS[5], IDS[88], HEAD})
"""First and last row, rows in the midst of a batch, ids that are no row, the end of a batch."""

WHOLE = Fold(start=start, step=step)
COLUMNS = Fold(start=start, step=step_of_columns, columns=("id", "payload"))
RESTORED = Fold(
    start=start, step=step, group=side_of,
    restore=lambda group, state: msgspec.json.decode(state, type=dict[str, Book]).get(group),
)  # fmt: skip
FOLD = f"{__name__}:BY_SIDE"
BY_SIDE = BOOKS


def folded(until_id: int, group: str | None = None, after_id: int = 0) -> Book | None:
    """The state in plain Python; None where the group has no order."""
    taken = [
        each for each in EVENTS
        if after_id < each.id <= until_id and (group is None or side_of(each) == group)
    ]  # fmt: skip
    return step(start(group or ""), taken)[0] if taken else None


def last_up_to(until_id: int) -> int:
    return max(each for each in IDS if each <= until_id)


State = Callable[..., StateAsOf[Any]]
PATIENCE: dict[str, Any] = {"connect_seconds": LONG_SECONDS, "statement_seconds": LONG_SECONDS}


def config_of(chain_id: int, dsn: str, **tuning: Any) -> ReceiverConfig:
    config = ReceiverConfig(chain_id=chain_id, gap_databases=(dsn,))
    return tuned(config, **PATIENCE, **tuning)


def reader_of(chain_id: int, dsn: str, **settings: Any) -> GapReader:
    return GapReader(GapReaderConfig(database=dsn, chain_id=chain_id, **PATIENCE, **settings))


@pytest.fixture
def gap_dsn(database: str, role_dsn: Callable[[str], str]) -> str:
    asyncio.run(store(database, ROWS))
    return role_dsn(GAP_READER)


@pytest.fixture
def state_of(gap_dsn: str) -> State:
    """Asks at the door, by pages that are smaller than a batch."""
    config = config_of(CHAIN_ID, gap_dsn, page_rows=7)

    def ask(*given: Any, **named: Any) -> StateAsOf[Any]:
        return asyncio.run(state_as_of(config, *given, **named))

    return ask


def test_state_is_that_of_all_orders_up_to_an_id(state_of: State) -> None:
    for place in PLACES:
        found = state_of(WHOLE, id=place)
        assert (found.state, found.id) == (folded(place), last_up_to(place))
        assert found.digest == digest_of(folded(place))
    for group in ("buy", "sell", "cancel"):
        assert state_of(BOOKS, group, id=IDS[88]).state == folded(IDS[88], group)
    assert state_of(COLUMNS, id=IDS[88]).state == folded(IDS[88])


def test_state_is_that_of_all_orders_up_to_a_time(state_of: State) -> None:
    for number in (0, 4, len(BATCH_ENDS) - 1):
        committed = FIRST_COMMIT + timedelta(seconds=number)
        for moment in (committed, committed + timedelta(milliseconds=999)):
            found = state_of(WHOLE, committed=moment)
            assert (found.id, found.state) == (BATCH_ENDS[number], folded(BATCH_ENDS[number]))
            assert found.is_final == (number < len(BATCH_ENDS) - 1)


def test_state_from_snapshots_is_the_same_and_folds_less(
    state_of: State, gap_dsn: str, tmp_path: Path
) -> None:
    store = FileSnapshotStore(tmp_path, CHAIN_ID, kept=5)

    async def save() -> None:
        async with reader_of(CHAIN_ID, gap_dsn) as reader:
            for at_id in (BATCH_ENDS[2], IDS[57], BATCH_ENDS[8]):
                mark = (await reader.standing(at_id)).mark
                assert mark is not None
                states = {side: folded(at_id, side) for side in ("buy", "sell", "cancel")}
                await store.save(Snapshot(mark=mark, state=msgspec.json.encode(states)))

    asyncio.run(save())
    for place in PLACES[1:]:
        found = state_of(RESTORED, "buy", id=place, snapshots=store)
        assert found.state == folded(place, "buy")
        begun = (0, BATCH_ENDS[2], IDS[57], BATCH_ENDS[8])
        assert found.after_id == max(each for each in begun if each <= place)
        new = folded(place, "buy", found.after_id)
        assert found.rows == (new["rows"] if new else 0)
    committed = FIRST_COMMIT + timedelta(seconds=6)
    assert state_of(RESTORED, "buy", committed=committed, snapshots=store).after_id == IDS[57]


def test_row_that_was_changed_is_refused_where_it_counts_and_unseen_where_it_does_not(
    state_of: State, database: str
) -> None:
    changed = IDS[BATCH_ROWS * 3 + 4]
    change = f"UPDATE chain_event SET payload = 'forged' WHERE id = {changed}"  # noqa: S608
    asyncio.run(execute(database, change))
    batch_end = next(each for each in BATCH_ENDS if each >= changed)
    before = [each for each in BATCH_ENDS if each < changed][-1]
    assert state_of(WHOLE, id=before).state == folded(before)
    # Before it, in its batch, too: only the whole batch has a seal.
    for place in (IDS[IDS.index(before) + 1], changed, batch_end, HEAD):
        with pytest.raises(BatchDamaged):
            state_of(WHOLE, id=place)


def test_commit_time_that_the_owner_set_ahead_gives_no_state(
    state_of: State, database: str
) -> None:
    changed = BATCH_ENDS[5]
    change = "UPDATE chain_batch SET committed_at = committed_at + interval '1 year'"
    asyncio.run(execute(database, f"{change} WHERE last_id = {changed}"))
    for number in range(5, len(BATCH_ENDS)):
        with pytest.raises(BatchDamaged):
            state_of(WHOLE, committed=FIRST_COMMIT + timedelta(seconds=number))
    assert state_of(WHOLE, committed=FIRST_COMMIT + timedelta(seconds=3)).id == BATCH_ENDS[3]


class BreakingOff:
    """A standby whose rows are others, and that is gone in the midst of a batch."""

    def __init__(self, reader: GapReader) -> None:
        self._reader = reader
        self.chain_id, self.close = reader.chain_id, reader.close
        self.row_before_time, self.row_at_or_before = None, None

    async def standing(self, at_id: int, batch_id: int | None = None) -> ChainPosition:
        return replace(await self._reader.standing(at_id, batch_id), is_primary=False)

    async def runs(self, *given: Any, **named: Any) -> AsyncGenerator[Run, None]:
        async for run in self._reader.runs(*given, **named):
            forged = replace(run.events[0], payload=b"forged")
            yield replace(run, events=[forged, *run.events[1:]])
            if not run.end.is_batch_end:
                raise RetryError("the server is away")


def test_batch_that_two_servers_have_read_is_no_proof(gap_dsn: str) -> None:
    async def ask(*, is_broken: bool) -> StateAsOf[Any]:
        readers = [reader_of(CHAIN_ID, gap_dsn, page_rows=7) for _ in range(2)]
        standbys: list[Any] = [BreakingOff(readers[0])] if is_broken else []
        source = PreferredSources([*standbys, readers[1]])
        config = ReceiverConfig(chain_id=CHAIN_ID)
        return await state_as_of(config, WHOLE, id=HEAD, gap_source=source)

    with pytest.raises(RetryError, match="the server broke off within the batch of id"):
        asyncio.run(ask(is_broken=True))
    assert asyncio.run(ask(is_broken=False)).state == folded(HEAD)


@pytest.fixture
def archived(
    gap_dsn: str, database: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> tuple[str, int]:
    """The archive, and the last id that the database no longer has."""
    monkeypatch.setenv("CHAINCTL_DATABASE", database)
    monkeypatch.setenv("CHAINCTL_GAP_DATABASE", gap_dsn)
    asyncio.run(execute(database, "UPDATE chain_head SET published_id = last_id"))
    chain = ("--chain", str(CHAIN_ID))
    place = str(tmp_path / "archive")
    source = ("--source", "database", "--local", "--since-verified")
    assert main(["verify", *chain, *source]) == 0
    assert main(["archive", *chain, "--archive", place]) == 0
    until = ("--until", str(BATCH_ENDS[7]), "--key-window-rows", "0", "--drop")
    reason = ("--reason", "a test")
    assert main(["retention", *chain, "--archive", place, *until, *reason]) == 0
    (boundary,) = asyncio.run(
        execute(database, "SELECT max(last_id) FROM chain_batch WHERE prev_last_id IS NULL")
    )[0]
    assert BATCH_ENDS[2] < boundary <= BATCH_ENDS[7]
    return place, boundary


def test_archived_orders_come_from_the_archive(
    state_of: State, archived: tuple[str, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, boundary = archived
    for at_id in (IDS[0], IDS[17], boundary, IDS[IDS.index(boundary) + 3], HEAD):
        assert state_of(WHOLE, id=at_id, archive=place).state == folded(at_id)
    for number in (1, len(BATCH_ENDS) - 1):
        committed = FIRST_COMMIT + timedelta(seconds=number)
        found = state_of(WHOLE, committed=committed, archive=place)
        assert (found.id, found.state) == (BATCH_ENDS[number], folded(BATCH_ENDS[number]))
    with pytest.raises(RowsArchived):
        state_of(WHOLE, id=HEAD)
    command = ["state", FOLD, "--chain", str(CHAIN_ID), "--group", "buy", "--as-of", str(HEAD)]
    capsys.readouterr()
    assert main(command) == 3
    assert capsys.readouterr().err.endswith("; --archive DIR reads them from an archive\n")
    assert main([*command, "--archive", place, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == folded(HEAD, "buy")


def test_command_shows_the_state_as_json_and_to_people(
    gap_dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CHAINCTL_DATABASE", gap_dsn)
    command = ["state", FOLD, "--chain", str(CHAIN_ID), "--group", "buy", "--as-of"]
    expected = folded(IDS[60], "buy")
    assert expected is not None
    assert main([*command, str(IDS[60]), "--json"]) == 0
    digest = digest_of(expected).hex()
    assert json.loads(capsys.readouterr().out) == {
        "chain": CHAIN_ID, "group": "buy", "id": IDS[60], "after_id": 0,
        "rows": expected["rows"], "digest": digest, "is_final": True, "state": expected,
    }  # fmt: skip
    assert main([*command, f"committed:{FIRST_COMMIT.isoformat()}"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"state of buy after id {BATCH_ENDS[0]}: ")
    assert '"rows": ' in shown
    assert "not final" not in shown
    assert main([*command, f"event:{FIRST_COMMIT.isoformat()}"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "not final: more orders up to this moment may still come"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--group", "buy", "--as-of", "2026-01-31"), "expected an id, or a time with its clock"),
        (("--as-of", str(HEAD)), "group was not given"),
        (("--group", "none", "--as-of", str(HEAD)), "expected a group that has orders up to id"),
        (("--group", "buy", "--as-of", str(HEAD + 1)), f"up to the head of the chain, {HEAD}"),
        (("--group", "buy", "--as-of", "event:1970-01-01"), "at or after the first order of chain"),
        (("--group", "buy", "--as-of", "committed:1970-01-01"), "at or after the first order"),
        (("--group", "buy", "--as-of", "1", "--chain", "99"), "chain was 99"),
        (("--group", "buy", "--as-of", "9", "--snapshots", "/none"), "a folder that exists"),
    ],
)
def test_command_refuses_in_one_line(
    gap_dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    arguments: Sequence[str], expected: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("CHAINCTL_DATABASE", gap_dsn)
    assert main(["state", FOLD, "--chain", str(CHAIN_ID), *arguments]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert expected in shown.err


# -- real markets ----------------------------------------------------------------------------------

SAMPLES = sorted(Path(os.environ.get("ORDERCHAIN_SAMPLE_DATA", "/none")).glob("*/events.csv.xz"))
SAMPLE_ROWS = 5_000


class Sample(msgspec.Struct):
    symbol: str
    action: str
    order_no: str
    qty: str
    contra_order_no: str = ""


_decode = msgspec.msgpack.Decoder(Sample).decode


def open_quantities(
    book: dict[str, int], orders: Sequence[Event]
) -> tuple[dict[str, int], tuple[()]]:
    """Keep what is left of each order: added, deleted, traded."""
    for each in orders:
        row = _decode(each.payload)
        if row.action == "A":
            book[row.order_no] = int(row.qty)
            continue
        for order_no in (row.order_no, row.contra_order_no):
            left = book.pop(order_no, 0) - int(row.qty)
            if row.action == "T" and left > 0:
                book[order_no] = left
    return book, ()


def symbol_of(order: Event) -> str:
    return _decode(order.payload).symbol


MARKET = Fold(start=lambda _: dict[str, int](), step=open_quantities, group=symbol_of)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.parent.name)
def test_state_on_a_real_market_is_that_of_its_events_by_id_and_by_their_own_time(
    sample: Path, database: str, role_dsn: Callable[[str], str], monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setenv("CHAINCTL_DATABASE", database)
    lines = tmp_path / "events.csv"
    with lzma.open(sample, "rt") as file:
        lines.write_text("".join(islice(file, SAMPLE_ROWS + 1)))
    assert main(["chain", "create", "1"]) == 0
    times = ("--time-column", "ts_ms")
    assert main(["sequence", "--chain", "1", "--input", str(lines), *times]) == 0
    config = config_of(1, role_dsn(GAP_READER))

    async def read() -> list[Event]:
        async with reader_of(1, role_dsn(GAP_READER)) as reader:
            position = await reader.standing(0)
            assert position.mark is not None
            runs = reader.runs(position.mark, position.head.last_id)
            return [event async for run in runs for event in run.events]

    events = asyncio.run(read())
    assert len(events) == SAMPLE_ROWS
    symbol = symbol_of(events[SAMPLE_ROWS // 2])

    def expected(orders: Sequence[Event]) -> dict[str, int]:
        return open_quantities({}, [each for each in orders if symbol_of(each) == symbol])[0]

    for at in (SAMPLE_ROWS // 2, SAMPLE_ROWS * 3 // 4, SAMPLE_ROWS - 1):
        by_id = asyncio.run(state_as_of(config, MARKET, symbol, id=events[at].id))
        assert by_id.state == expected(events[: at + 1])
        moment: datetime = time_of(events[at].event_time_ns)
        taken = [each for each in events if each.event_time_ns <= events[at].event_time_ns]
        by_time = asyncio.run(state_as_of(config, MARKET, symbol, event=moment))
        assert (by_time.id, by_time.state) == (taken[-1].id, expected(taken))
