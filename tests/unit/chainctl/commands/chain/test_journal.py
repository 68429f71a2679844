import base64
import errno
import json
import os
from pathlib import Path

import msgspec
import pytest

from chain_kernel.errors import InputError, SettingError
from chain_kernel.model import Event
from chainctl.commands.chain.journal import Journal, encode_rows
from chainctl.exits import BrokeOff, ExitCode, exit_code


def events(first: int, last: int, payload: bytes = b"\x81\xa1a\xa1b") -> list[Event]:
    return [
        Event(number, number - 1, f"k{number}", 7, payload) for number in range(first, last + 1)
    ]


def ids(path: Path) -> list[int]:
    return [json.loads(line)["id"] for line in path.read_text().splitlines()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "j.jsonl"


def write(path: Path, first: int, last: int, chain_id: int = 1) -> None:
    with Journal(path, chain_id) as journal:
        journal.start()
        journal.append(events(first, last))


def test_journal_line_holds_the_row_with_its_payload_in_base64(path: Path) -> None:
    write(path, 1, 1)
    assert json.loads(path.read_text()) == {
        "chain_id": 1,
        "id": 1,
        "pid": 0,
        "key": "k1",
        "event_time_ns": 7,
        "payload": base64.b64encode(b"\x81\xa1a\xa1b").decode(),
    }


def test_journal_that_decodes_holds_the_object(path: Path) -> None:
    with Journal(path, 1, "msgpack") as journal:
        journal.start()
        journal.append(events(1, 1))
    assert json.loads(path.read_text())["payload"] == {"a": "b"}


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x91" * 100_000, b"\xc7\x01\x05a"])
def test_journal_that_decodes_refuses_a_payload_that_is_no_messagepack(payload: bytes) -> None:
    with pytest.raises(InputError, match="payload of id 1"):
        encode_rows(1, events(1, 1, payload), "msgpack")


def test_journal_again_reports_its_last_row_and_goes_on_behind_it(path: Path) -> None:
    write(path, 1, 3)
    with Journal(path, 1) as journal:
        assert journal.last_row is not None
        assert journal.last_row.id == 3
        journal.check_last(events(3, 3))
        journal.start()
        journal.append(events(4, 5))
    assert ids(path) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("left", [0, 150])
def test_journal_that_another_process_cuts_meanwhile_gets_no_row_and_no_hole(
    path: Path, left: int
) -> None:
    """As logrotate does with copytruncate."""
    with Journal(path, 1) as journal:
        journal.start()
        journal.append(events(1, 3))
        os.truncate(path, left)
        with pytest.raises(BrokeOff, match="another process has changed it") as broken:
            journal.append(events(4, 5))
        assert exit_code(broken.value) is ExitCode.FAILED
    assert path.stat().st_size == left
    with Journal(path, 1) as journal:
        assert (journal.last_row and journal.last_row.id) == (1 if left else None)


@pytest.mark.parametrize("cut", [1, 2, 30, 60])
def test_journal_with_a_torn_last_line_is_cut_back_to_the_whole_ones(path: Path, cut: int) -> None:
    write(path, 1, 3)
    content = path.read_bytes()
    path.write_bytes(content[:-cut])
    with Journal(path, 1) as journal:
        assert journal.last_row is not None
        assert journal.last_row.id == 2
        journal.start()
        journal.append(events(3, 3))
    assert path.read_bytes() == content


@pytest.mark.parametrize("size", [0, 1, 14, 20, 60])
def test_journal_torn_in_its_first_line_begins_anew(path: Path, size: int) -> None:
    write(path, 1, 1)
    content = path.read_bytes()
    path.write_bytes(content[:size])
    with Journal(path, 1) as journal:
        assert journal.last_row is None
        journal.start()
        journal.append(events(1, 1))
    assert path.read_bytes() == content


def test_journal_that_is_only_opened_is_left_as_it_is(path: Path) -> None:
    with Journal(path, 1):
        pass
    assert not path.exists()
    path.write_bytes(b'{"chain_id":1,')
    with Journal(path, 1):
        pass
    assert path.read_bytes() == b'{"chain_id":1,'


def test_journal_of_another_chain_is_refused(path: Path) -> None:
    write(path, 1, 2, chain_id=7)
    with pytest.raises(InputError, match="one of chain 1, not of 7"):
        Journal(path, 1)


@pytest.mark.parametrize(
    "content",
    [
        b"seq,price\n1,2\n",
        b"\x00\x01\x02",
        b"notes\n",
        b"{}\n",
        b'{"chain_id":1}\n',
        b'{"chain_id":1,"id":0,"pid":0,"key":"","event_time_ns":0,"payload":""}\n',
        b'{"chain_id":7,"id":',
        b"\n",
    ],
)
def test_file_that_is_no_journal_is_refused_and_left_as_it_is(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(InputError, match="journal was"):
        Journal(path, 1)
    assert path.read_bytes() == content


def test_file_that_only_ends_like_a_journal_is_refused(path: Path) -> None:
    write(path, 1, 2)
    path.write_bytes(b"# my notes\n" + path.read_bytes())
    with pytest.raises(InputError, match="first line"):
        Journal(path, 1)


def test_journal_whose_last_row_is_another_one_in_the_database_is_refused(path: Path) -> None:
    write(path, 1, 3)
    with Journal(path, 1) as journal:
        for other in (events(3, 3, b"x"), events(2, 2), events(2, 3), []):
            with pytest.raises(InputError, match="id 3 is another row"):
                journal.check_last(other)


def test_journal_that_another_process_writes_is_refused(path: Path) -> None:
    with Journal(path, 1) as journal:
        journal.start()
        with pytest.raises(SettingError, match="another process writes it"):
            Journal(path, 1)
    with Journal(path, 1) as journal:
        assert journal.last_row is None


def test_journal_that_another_process_makes_meanwhile_is_refused_and_left_as_it_is(
    path: Path,
) -> None:
    with Journal(path, 1) as journal:
        write(path, 1, 3)
        content = path.read_bytes()
        with pytest.raises(SettingError, match="another process has made it"):
            journal.start()
    assert path.read_bytes() == content


def test_journal_through_a_link_to_no_file_yet_makes_that_file(path: Path) -> None:
    link = path.with_name("link")
    link.symlink_to(path)
    write(link, 1, 1)
    write(link, 2, 3)
    assert ids(path) == [1, 2, 3]


def test_journal_where_no_file_can_be_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    for path, reason in (
        (tmp_path, "no regular file"),
        (tmp_path / "missing" / "j", "no folder"),
        (tmp_path / "a\0b", "NUL"),
    ):
        with pytest.raises(SettingError, match=reason):
            Journal(path, 1)


def test_journal_on_a_full_disk_names_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int, __: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Journal(path, 1) as journal:
        journal.start()
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left on device") as failed:
            journal.append(events(1, 1))
    assert failed.value.filename == str(path)


def test_journal_whose_writes_are_partial_is_whole(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_all = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write_all(file, data[:7]))
    write(path, 1, 5)
    assert ids(path) == [1, 2, 3, 4, 5]


def test_journal_of_large_lines_finds_its_last_row(path: Path) -> None:
    payload = msgspec.msgpack.encode("\x01" * 250_000)
    with Journal(path, 1, "msgpack") as journal:
        journal.start()
        journal.append(events(1, 8, payload))
    path.write_bytes(path.read_bytes()[:-10])
    with Journal(path, 1, "msgpack") as journal:
        assert journal.last_row is not None
        assert journal.last_row.id == 7


def test_journal_is_its_users_alone_and_keeps_the_mode_that_it_was_given(path: Path) -> None:
    write(path, 1, 2)
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    write(path, 3, 4)
    assert path.stat().st_mode & 0o777 == 0o640
