import io
import lzma
import os
import random
import zlib
from pathlib import Path

import pytest

from chain_kernel.errors import InputError
from sequencer.intake.compressed import ROW_BYTES_MAX, FileStream, content_name
from tests.unit.sequencer.intake.conftest import Write

SUFFIXES = [".gz", ".xz", ".zst"]


def content_of(path: Path) -> bytes:
    with FileStream(path) as stream:
        return stream.readall() or b""


@pytest.fixture(scope="module")
def text() -> bytes:
    """Half a megabyte that does not compress to nothing."""
    draw = random.Random(7)
    return b"".join(b"%d,%d\n" % (draw.getrandbits(64), index) for index in range(20_000))


@pytest.mark.parametrize("suffix", ["", *SUFFIXES])
def test_any_compression_yields_the_content(write: Write, text: bytes, suffix: str) -> None:
    path = write(f"orders.csv{suffix}", text)
    with FileStream(path) as stream:
        assert stream.readall() == text
        assert stream.content_bytes == len(text)
        assert stream.file_position == stream.file_bytes == path.stat().st_size


@pytest.mark.parametrize("suffix", ["", *SUFFIXES])
def test_stream_of_a_pipe_is_read_as_a_file_of_its_name(write: Write, suffix: str) -> None:
    path = write(f"orders.csv{suffix}", b"n\n1\n2\n")
    stored = path.read_bytes()
    reading, writing = os.pipe()
    os.write(writing, stored)
    os.close(writing)
    with FileStream(Path(f"other.csv{suffix}"), io.FileIO(reading, "r")) as stream:
        assert stream.file_bytes is None
        assert stream.readall() == b"n\n1\n2\n"
        assert stream.file_position == len(stored)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(reading)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_stream_that_is_cut_off_anywhere_is_refused(write: Write, text: bytes, suffix: str) -> None:
    path = write(f"orders.csv{suffix}", text[:20_000])
    whole = path.read_bytes()
    for size in {1, 5, 20, len(whole) // 2, len(whole) - 9, len(whole) - 1}:
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match=rf"a whole \{suffix} file \(it is cut off\)"):
            content_of(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("content", [b"seq,price\n1,2\n", b"\x00" * 4096, b"PK\x03\x04" * 99])
def test_stream_unlike_its_name_is_refused(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"orders.csv{suffix}"
    path.write_bytes(content)
    with pytest.raises(InputError, match="its content is not"):
        content_of(path)


def test_stream_without_line_ends_is_refused_long_before_its_end(write: Write) -> None:
    path = write("bomb.csv.gz", b"x" * (40 * ROW_BYTES_MAX))
    with (
        FileStream(path) as stream,
        pytest.raises(InputError, match=f"lines of at most {ROW_BYTES_MAX} bytes"),
    ):
        stream.readall()
    assert stream.content_bytes < 2 * ROW_BYTES_MAX


def test_stream_with_nul_bytes_shows_them_as_bytes_that_are_no_text(write: Write) -> None:
    assert content_of(write("a.csv", b"a\0b\n")) == b"a\xffb\n"


def test_stream_of_an_xz_file_that_asks_for_gigabytes_of_memory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.xz"
    content = bytearray(lzma.compress(b"a\n", preset=0))
    # The dictionary's size is in the block header, behind the filter's id and size.
    at = content.index(b"\x21\x01", 12) + 2
    content[at] = 40
    header_bytes = (content[12] + 1) * 4
    crc = zlib.crc32(content[12 : 12 + header_bytes - 4])
    content[12 + header_bytes - 4 : 12 + header_bytes] = crc.to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(InputError, match="its content is not"):
        content_of(path)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("events.csv", "events.csv"),
        ("events.csv.xz", "events.csv"),
        ("events.csv.ZST", "events.csv"),
        ("events.csv.gz", "events.csv"),
        ("events.gz.csv", "events.gz.csv"),
        ("dir.gz/events.jsonl", "events.jsonl"),
    ],
)
def test_content_name_leaves_out_folder_and_compression(name: str, expected: str) -> None:
    assert content_name(Path(name)) == expected


@pytest.mark.parametrize("name", ["a\nb.csv", "\udcff.csv", "a\x1bb.csv"])
def test_content_name_that_is_no_text_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="printable"):
        content_name(Path(name))


def test_stream_of_what_is_no_file_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty.csv"
    empty.touch()
    for path, reason in (
        (tmp_path / "missing.csv", "No such file"),
        (tmp_path, "it is a folder"),
        (Path("/dev/zero"), "no regular file"),
        (empty, "it is empty"),
        (tmp_path / "a\0b", "the path of a file"),
        (empty / "below", "Not a directory"),
    ):
        with pytest.raises(InputError, match=reason):
            FileStream(path)
