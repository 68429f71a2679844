from __future__ import annotations

import pytest

from chainctl import output


def test_table_with_numbers_and_nothing_aligns_them(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(("name", "rows"), [("a", 1), ("long name", 12_345)])
    assert capsys.readouterr().out.splitlines() == [
        "NAME        ROWS",
        "a              1",
        "long name  12345",
    ]


def test_table_without_rows_is_its_head(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(("name", "there"), [])
    assert capsys.readouterr().out == "NAME  THERE\n"


def test_table_with_truths_and_nothing_says_yes_no_and_a_dash(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output.table(("what", "value"), [("up", True), ("down", False), ("leader", None)])
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == [
        "VALUE",
        "yes",
        "no",
        "-",
    ]


def test_data_with_stdout_closed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", None)
    with pytest.raises(OSError, match="stdout is closed"):
        output.data("lost")


def test_talk_with_stderr_closed_does_not_come_among_the_data(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr", None)
    output.talk("hello")
    assert capsys.readouterr().out == ""


def test_rate_with_nothing_done_shows_no_rate() -> None:
    assert output.rate(0, "rows", 1.0) == "0 rows"
    assert output.rate(3_000, "rows", 1.5) == "3,000 rows in 1.5 s (2,000/s)"


def test_progress_without_a_terminal_draws_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with output.progress("work", 10, "bytes") as bar:
        bar.advance(3)
        bar.move_to(7, "note")
        bar.expect(20)
    assert capsys.readouterr() == ("", "")
