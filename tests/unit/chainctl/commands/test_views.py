"""What the command line makes of rows and options: states, spans, sizes, a place in a journal."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
import pytest

from chain_kernel.errors import SettingError
from chain_kernel.model import Event
from chainctl.commands.chain.journal import encode_rows
from chainctl.commands.doctor import look_at_replication
from chainctl.commands.receivers import LagBounds
from chainctl.commands.records import find_in_journal
from chainctl.units import Size, Span, shown_age, shown_span
from chainctl.views import ReceiverLine, leader_life, leader_state

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, "leads"),
        ({"step_down": True}, "steps down"),
        ({"beat_age_seconds": 5.1}, "silent"),
        ({"beat_age_seconds": 5.1, "step_down": True}, "silent"),
        ({"beat_age_seconds": None}, "silent"),
        ({"released": True, "beat_age_seconds": 100.0}, "handed over"),
        ({"epoch": 0, "released": True}, "never led"),
    ],
)
def test_leader_is_silent_once_its_beat_is_older_than_its_lease(
    changes: dict[str, Any], state: str
) -> None:
    chain = {
        "epoch": 3, "released": False, "step_down": False, "beat_age_seconds": 0.4,
        "lease_seconds": 5.0,
    }  # fmt: skip
    assert leader_state({**chain, **changes}) == state


@pytest.mark.parametrize(
    ("changes", "life"),
    [
        ({}, "leads since 2026-07-01T09:00:00.000000Z, last beat 0.4 s ago"),
        (
            {"step_down": True, "leader_since": None},
            "leads, last beat 0.4 s ago, asked to step down",
        ),
        ({"beat_age_seconds": 12.04}, "silent for 12.0 s"),
        ({"beat_age_seconds": None}, "silent"),
        ({"released": True}, "handed over"),
        ({"epoch": 0}, "never led"),
    ],
)
def test_life_of_a_leader_is_said_in_words(changes: dict[str, Any], life: str) -> None:
    chain = {
        "epoch": 3, "released": False, "step_down": False, "beat_age_seconds": 0.4,
        "lease_seconds": 5.0, "leader_since": datetime(2026, 7, 1, 9, tzinfo=UTC),
    }  # fmt: skip
    assert leader_life({**chain, **changes}) == life


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("500ms", 0.5), ("5m", 300), ("1.5h", 5_400), ("2d", 172_800)],
)
def test_span_has_a_unit(text: str, seconds: float) -> None:
    assert Span().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "0", "-1", "1w", "nan", "inf", "1e9", "5 m", "999999d"])
def test_bad_span_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is no time span such as"):
        Span().convert(text, None, None)


def test_span_of_an_option_in_hours_is_in_hours_without_a_unit_and_ends_at_its_bound() -> None:
    hours = Span(366 * 86_400, unit="h")
    assert hours.convert("72", None, None) == hours.convert("3d", None, None) == 3 * 86_400
    with pytest.raises(click.BadParameter, match="up to 366d"):
        hours.convert("367d", None, None)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.25, "250ms"), (90, "90s"), (7_200, "2h"), (0, "0s"), (1e-4, "0.0001s")]
)
def test_span_is_shown_in_the_largest_unit_that_fits(seconds: float, text: str) -> None:
    assert shown_span(seconds) == text


@pytest.mark.parametrize(
    ("text", "size"), [("1000", 1_000), ("5KB", 5_000), ("1.5gb", 1_500_000_000), ("7 B", 7)]
)
def test_size_has_a_unit(text: str, size: int) -> None:
    assert Size().convert(text, None, None) == size


@pytest.mark.parametrize("text", ["", "0", "5XB", "-1GB", "1GiB"])
def test_bad_size_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is no size such as"):
        Size().convert(text, None, None)


@pytest.mark.parametrize(
    ("bounds", "halted", "why"),
    [
        (LagBounds(seconds=10), "", None),
        (LagBounds(seconds=9.9), "", "is 10.0 s behind, above 9.9"),
        (LagBounds(rows=99), "", "is 100 rows behind, above 99"),
        (LagBounds(rows=100), "ForkFound at 7", "has halted: ForkFound at 7"),
    ],
)
def test_receiver_is_outside_its_bounds_when_late_or_halted(
    bounds: LagBounds, halted: str, why: str | None
) -> None:
    line = ReceiverLine(
        chain=1, receiver="m", checkpoint="stored", head_delivered=1, behind_ids=100,
        behind_rows=100, behind_seconds=10.0, updated="", agrees="yes", halted=halted,
        halt_detail="",
    )  # fmt: skip
    assert bounds.broken_by(line) == why


@pytest.mark.parametrize("count", [0, 1, 2, 3, 50])
def test_every_row_of_a_journal_is_found_by_halves_and_no_other(tmp_path: Path, count: int) -> None:
    path = tmp_path / "j.jsonl"
    events = [
        Event(10 * n, 10 * (n - 1), "k" * (n % 7), 0, b"x" * (n * 13 % 97))
        for n in range(1, count + 1)
    ]
    lines = [encode_rows(1, [event], "base64") for event in events]
    path.write_bytes(b"".join(lines) + b'{"chain_id":1,"id":99999,"pi')  # torn
    for index, event in enumerate(events):
        found = find_in_journal(path, event.id)
        assert found is not None
        assert (found["at_byte"], found["pid"]) == (sum(map(len, lines[:index])), event.pid)
        assert find_in_journal(path, event.id + 1) is None
    assert find_in_journal(path, 5) is None
    assert find_in_journal(path, 99_999) is None


def test_file_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello\n" * 10)
    with pytest.raises(SettingError, match="--journal"):
        find_in_journal(path, 5)
    with pytest.raises(SettingError, match="a file to read"):
        find_in_journal(tmp_path / "none", 5)


class OneRow:
    """A connection that answers every statement with one row."""

    def __init__(self, row: dict[str, object]) -> None:
        self._row = row

    async def fetchrow(self, _: str) -> dict[str, object]:
        return self._row


@pytest.mark.parametrize(
    ("wanted", "standbys", "synchronous", "hidden", "state", "found"),
    [
        ("", 2, 0, 0, "ok", "2 standbys, and commits wait for none"),
        ("*", 1, 1, 0, "ok", "commits wait for *; 1 standby"),
        ("*", 1, 0, 1, "ok", "commits wait for *; 1 standby"),  # this login cannot see which
        ("*", 0, 0, 0, "failed", "0 standbys, none of which is synchronous: no commit ends"),
        ("other", 1, 0, 0, "failed", "1 standby, none of which is synchronous: no commit ends"),
    ],
)
async def test_doctor_fails_where_commits_would_wait_forever(
    wanted: str, standbys: int, synchronous: int, hidden: int, state: str, found: str
) -> None:
    row = {
        "wanted": wanted, "standbys": standbys, "synchronous": synchronous, "hidden": hidden,
    }  # fmt: skip
    line = await look_at_replication(OneRow(row))
    assert (line.state, line.found.endswith(found)) == (state, True), line


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (119, "119 s"), (121, "2 min"), (7_300, "2 h"), (200_000, "2 days")],
)
def test_age_is_shown_in_a_unit_for_people(seconds: float, text: str) -> None:
    assert shown_age(seconds) == text
