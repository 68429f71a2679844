"""What the command line makes of rows and options: states, spans, sizes."""

import click
import pytest

from chainctl.commands.doctor import look_at_replication
from chainctl.commands.receivers import too_far
from chainctl.units import Size, Span, shown_age, shown_span
from chainctl.views import ReceiverLine


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Span(), "90", 90), (Span(), "500ms", 0.5), (Span(), "1.5h", 5_400),
        (Span(), "2d", 172_800), (Span(unit="h"), "72", 259_200), (Span(unit="h"), "3d", 259_200),
        (Span(may_be_zero=True), "0", 0), (Size(), "1000", 1_000), (Size(), "1.5gb", 1.5e9),
        (Size(), "7 B", 7),
    ],
)  # fmt: skip
def test_span_and_size_have_a_unit(kind: click.ParamType, text: str, value: float) -> None:  # type: ignore[type-arg]
    assert kind.convert(text, None, None) == value


@pytest.mark.parametrize(
    ("kind", "texts", "shown"),
    [
        (Span(), ("", "0", "-1", "1w", "nan", "inf", "1e9", "5 m", "999999d"), "a time span such"),
        (Span(366 * 86_400, unit="h"), ("367d",), "up to 366d"),
        (Size(), ("", "0", "5XB", "-1GB", "1GiB"), "a size such as"),
    ],
)
def test_bad_span_or_size_is_refused(
    kind: click.ParamType,  # type: ignore[type-arg]
    texts: tuple[str, ...],
    shown: str,
) -> None:
    for text in texts:
        with pytest.raises(click.BadParameter, match=shown):
            kind.convert(text, None, None)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.25, "250ms"), (90, "90s"), (7_200, "2h"), (0, "0s"), (1e-4, "0.0001s")]
)
def test_span_is_shown_in_the_largest_unit_that_fits(seconds: float, text: str) -> None:
    assert shown_span(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "rows", "halted", "why"),
    [
        (10, None, "", None),
        (9.9, None, "", "is 10.0 s behind, above 9.9"),
        (None, 99, "", "is 100 rows behind, above 99"),
        (None, 100, "ForkFound at 7", "has halted: ForkFound at 7"),
    ],
)
def test_receiver_is_outside_its_bounds_when_late_or_halted(
    seconds: float | None, rows: int | None, halted: str, why: str | None
) -> None:
    line = ReceiverLine(
        chain=1, receiver="m", checkpoint="stored", head_delivered=1, behind_ids=100,
        behind_rows=100, behind_seconds=10.0, updated="", agrees="yes", halted=halted,
        halt_detail="",
    )  # fmt: skip
    assert too_far(line, seconds, rows) == why


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
