"""What is logged while a command runs is one printable line per record, whatever stands in it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from chainctl.options import set_up_logging
from chainctl.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

HOSTILE = "no\nchainctl: error: forged\r\x1b[2J\u202e\ud83d"


@pytest.fixture(autouse=True)
def _loggers_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


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
    assert len(capsys.readouterr().err) < 5_000


def test_record_with_a_password_hides_it_however_it_is_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = Settings(log_level="info", database="postgresql://u:swordfish@h/d")
    set_up_logging(settings)
    logging.getLogger("gapfill").error("no: postgresql://u:swordfish@h/d %s", "swordfish")
    assert "swordfish" not in capsys.readouterr().err


def test_traceback_of_debug_is_indented_so_that_no_line_looks_like_a_record(
    capsys: pytest.CaptureFixture[str],
) -> None:
    set_up_logging(Settings(log_level="debug"))
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        logging.getLogger("outbox").exception("failed")
    first, *rest = capsys.readouterr().err.rstrip("\n").split("\n")
    assert first == "chainctl: ERROR: failed"
    assert rest
    assert all(line.startswith("  ") and line.isprintable() for line in rest)
    assert rest[0] == "  Traceback (most recent call last):"
