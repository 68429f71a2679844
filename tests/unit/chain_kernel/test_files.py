"""Files of orders are private, and what a receiver writes to a journal is what a verifier finds."""

from pathlib import Path

import msgspec
import pytest

from chain_kernel.files import (
    LINE_BYTES_MAX,
    found_row,
    journal_end,
    journal_lines,
    write_private,
    written_row,
)
from chain_kernel.limits import ID_MAX, KEY_BYTES_MAX, PAYLOAD_BYTES_MAX
from chain_kernel.model import Event

EVENTS = [
    Event(7, 6, 'a\0"\u00e9#1', -1, b""),
    Event(ID_MAX, 7, "\x01" * KEY_BYTES_MAX, 2**63 - 1, b"\xff" * PAYLOAD_BYTES_MAX),
]


def test_lines_with_extreme_values_are_found_as_written(tmp_path: Path) -> None:
    lines = journal_lines(3, EVENTS, [event.payload for event in EVENTS]).splitlines(keepends=True)
    for line, event in zip(lines, EVENTS, strict=True):
        found = found_row(line.removesuffix(b"\n"))
        written = written_row(line)
        assert found is not None
        assert written is not None
        assert msgspec.structs.astuple(found) == (
            3, event.id, event.pid, event.key, event.event_time_ns, event.payload
        )  # fmt: skip
        assert (written.chain_id, written.id) == (3, event.id)
        assert len(line) < LINE_BYTES_MAX
    journal = tmp_path / "journal"
    journal.write_bytes(b"".join(lines) + b"torn")
    assert journal_end(journal) == (journal.stat().st_size, True, ID_MAX)
    journal.write_bytes(b"")
    assert journal_end(journal) == (0, False, 0)


@pytest.mark.parametrize(
    "line", [b"", b"[]", b"{", b'{"id":1} ', b'{"id":1}\r', b'{"id":"1"}', b'{"id":1.0}',
             b'{"payload":"*"}', b'{"key":"\xff"}', b"[" * 100_000 + b"}"],
)  # fmt: skip
def test_found_row_with_what_no_receiver_writes_is_none(line: bytes) -> None:
    assert found_row(line) is None
    assert written_row(line) is None


def test_found_row_with_missing_values_has_them_as_none() -> None:
    """They are findings of a verifier; no receiver continues after such a line."""
    found = found_row(b'{"id":5,"key":null}')
    assert found is not None
    assert (found.id, found.pid, found.key) == (5, None, None)
    assert written_row(b'{"id":5,"key":null}') is None


@pytest.mark.parametrize(("line", "expected"), [(b'{"pid":1}', 0), (b'{"id":-4}', 0), (b"x", None)])
def test_odd_last_line_is_an_estimate(line: bytes, expected: int | None, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(line + b"\n")
    assert journal_end(path).last_id == expected


def test_file_is_its_users_alone_and_holds_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_private(path, "größe")
    assert path.stat().st_mode & 0o777 == 0o600
    write_private(path, "x")
    assert path.read_bytes() == b"x"
