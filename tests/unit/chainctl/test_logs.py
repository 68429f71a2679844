"""What is logged while a command runs is one printable line per record, whatever is in it."""

import json
import logging
import os
import platform
import re
from collections.abc import Iterator

import pytest

from chainctl.logs import Subject, set_up_logging
from chainctl.main import main
from chainctl.output import talk, talk_through
from chainctl.settings import Settings

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"

HOSTILE = "no\nchainctl: error: forged\r\x1b[2J\u202e\ud83d"


@pytest.fixture(autouse=True)
def _loggers_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    talk_through(None)


def test_record_with_foreign_text_is_one_printable_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    set_up_logging(Settings(log_level="info"))
    logging.getLogger("sequencer.x").warning("chain %d: %s", 3, HOSTILE)
    assert capsys.readouterr().err == (
        "chainctl: warning: chain 3: no\\nchainctl: error: forged\\r\\x1b[2J\\u202e\\ud83d\n"
    )


def test_record_without_end_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(Settings(log_level="info"))
    logging.getLogger("sequencer.x").warning("%s", "x" * 1_000_000)
    line = capsys.readouterr().err
    assert line.startswith("chainctl: warning: xxx")
    assert len(line) < 5_000


def test_record_with_a_password_hides_it_however_it_is_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = Settings(log_level="info", database="postgresql://u:swordfish@h/d")
    set_up_logging(settings)
    logging.getLogger("gapfill").error("no: postgresql://u:swordfish@h/d %s", "swordfish")
    assert capsys.readouterr().err == "chainctl: error: no: postgresql://u:***@h/d ***\n"


def test_traceback_of_debug_is_indented_so_that_no_line_looks_like_a_record(
    capsys: pytest.CaptureFixture[str],
) -> None:
    set_up_logging(Settings(log_level="debug"))
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        logging.getLogger("outbox").exception("failed")
    first, *rest = capsys.readouterr().err.rstrip("\n").split("\n")
    assert first == "chainctl: error: failed"
    assert rest
    assert all(line.startswith("  ") and line.isprintable() for line in rest)
    assert rest[0] == "  Traceback (most recent call last):"


def test_line_of_a_command_that_runs_long_has_time_level_logger_and_subject(
    capsys: pytest.CaptureFixture[str],
) -> None:
    set_up_logging(Settings(log_level="info"), Subject(chain=3, name="r%1\n"))
    logging.getLogger("sequencer.x").info("no\nway")
    line = capsys.readouterr().err
    assert re.fullmatch(TIME + r" info sequencer\.x chain=3 name=r%1\\n: no\\nway\n", line)


def test_json_line_of_a_record_is_one_object_with_time_and_subject(
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = Settings(
        log_level="debug", log_format="json", database="postgresql://u:swordfish@h/d"
    )
    set_up_logging(settings, Subject(chain=3))
    try:
        raise ValueError("swordfish")
    except ValueError:
        logging.getLogger("outbox").exception("%s swordfish", HOSTILE)
    written = capsys.readouterr().err
    assert written.count("\n") == 1
    assert written.rstrip("\n").isprintable()
    line = json.loads(written)
    assert re.fullmatch(TIME, line.pop("time"))
    assert line.pop("traceback").endswith("ValueError: ***")
    message = "no\\nchainctl: error: forged\\r\\x1b[2J\\u202e\\ud83d ***"
    assert line == {"level": "error", "logger": "outbox", "chain": 3, "message": message}


def test_what_a_command_prints_is_json_too_where_logs_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    set_up_logging(Settings(log_format="json"), Subject(chain=3, name="r"))
    talk(f"chainctl: leading {HOSTILE}")
    written = capsys.readouterr().err
    assert written.rstrip("\n").isprintable()
    line = json.loads(written)
    assert (line["level"], line["logger"], line["name"]) == ("info", "chainctl", "r")
    assert line["message"] == f"leading {HOSTILE}"


def test_lines_of_a_sequencer_have_the_name_by_which_it_leads(
    capsys: pytest.CaptureFixture[str],
) -> None:
    call = ["sequence", "--chain", "7", "--intake-topic", "t", "--log-format", "json"]
    names = []
    for owner in (["--owner", "seq-a"], []):
        assert main([*call, *owner, "--database", "postgresql://h/d", "--kafka", "nonsense"]) == 2
        names.append(json.loads(capsys.readouterr().err)["name"])
    assert names == ["seq-a", f"{platform.node()}:{os.getpid()}"]


def test_command_that_ends_soon_prints_text_whatever_the_log_format_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    set_up_logging(Settings(log_format="json"))
    talk("chainctl: done")
    assert capsys.readouterr().err == "chainctl: done\n"
