import io
import json
import threading

import pytest

from chainctl import output

HOSTILE = "owner\nchainctl: error: forged\x1b[2J\u202e"
ESCAPED = "owner\\nchainctl: error: forged\\x1b[2J\\u202e"


def test_table_with_numbers_and_nothing_aligns_them(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(("name", "rows"), [("a", 1), ("long name", 12_345)])
    assert capsys.readouterr().out.splitlines() == [
        "NAME        ROWS",
        "a              1",
        "long name  12345",
    ]


def test_table_says_yes_no_and_a_dash_and_is_its_head_without_rows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output.table(("what", "value"), [("up", True), ("down", False), ("leader", None)])
    output.table(("name", "there"), [])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == ["VALUE", "yes", "no", "-", "THERE"]


def test_talk_data_and_table_with_foreign_text_write_one_printable_line_each(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output.data(HOSTILE)
    output.talk(HOSTILE)
    output.table((HOSTILE, "n"), [(HOSTILE, 1)])
    out, err = capsys.readouterr()
    assert out.count(ESCAPED) == 2  # the head of a table is in capitals
    assert out.count("\n") == 3
    assert err == ESCAPED + "\n"
    assert all(line.isprintable() for line in out.splitlines())


def test_table_with_escaped_text_aligns_its_columns(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(("key", "n"), [("a\x1b", 1), ("abcdefg", 2)])
    head, first, second = capsys.readouterr().out.splitlines()
    assert len(head) == len(first) == len(second)


def test_json_and_text_for_programs_stay_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    output.data_json({"key": HOSTILE})
    output.data_text("CREATE ROLE x;\n\tGRANT y;")
    line, *text = capsys.readouterr().out.rstrip("\n").split("\n")
    assert json.loads(line) == {"key": HOSTILE}
    assert text == ["CREATE ROLE x;", "\tGRANT y;"]


def test_line_of_many_is_written_before_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written))
    output.data_json_line([1])
    assert written.getvalue() == b"[1]\n"


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


def test_progress_where_somebody_waits_and_no_bar_can_be_drawn_says_what_is_under_way(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = threading.Event()
    monkeypatch.setattr(output, "LINE_SECONDS", 0.001)

    def shown(text: str, _: str) -> str:
        said.set()
        return text

    output.talk_through(shown)
    try:
        with output.progress("verifying", None, is_awaited=True) as bar:
            bar.move_to(0, "starting Spark")
            assert said.wait(60)  # the work itself calls nothing
        with output.progress("receiving", None) as bar:
            bar.move_to(1, "a service's log is no place for it")
    finally:
        output.talk_through(None)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("chainctl: verifying: ")
    assert lines[0].endswith(" s so far")
    assert not any("receiving" in line for line in lines)


def test_rate_with_nothing_done_shows_no_rate() -> None:
    assert output.rate(0, "row", 1.0) == "0 rows"
    assert output.rate(1, "row", 0.5) == "1 row in 0.5 s (2/s)"
    assert output.rate(3_000, "row", 1.5) == "3,000 rows in 1.5 s (2,000/s)"


def test_progress_is_drawn_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "DRAW_SECONDS", 0.001)
    drawn = threading.Event()
    with output.progress("work", 10) as bar:
        bar.advance(3)
        bar.move_to(7, "note")
        bar.expect(20)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")

    def draw(line: str) -> None:
        if "work: 5 (50%), 0 s \\x1b[2J" in line:
            drawn.set()

    monkeypatch.setattr(output, "_draw", draw)
    with output.progress("work", 10) as bar:
        bar.move_to(5, "\x1b[2J")
        assert drawn.wait(60)
