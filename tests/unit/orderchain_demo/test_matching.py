from pathlib import Path

import pytest

from chain_kernel.errors import OrderchainError
from orderchain_demo.matching import cut_back, synced_length


@pytest.mark.parametrize(
    ("content", "length", "rows_cut"),
    [(b"one\ntwo\nthree\nto", 4, 2), (b"one\n", 4, 0), (b"", 0, 0), (None, 0, 0)],
)
def test_cut_back_leaves_what_was_stored_and_counts_the_whole_rows_after_it(
    content: bytes | None, length: int, rows_cut: int, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    if content is not None:
        journal.write_bytes(content)
    assert cut_back(journal, length) == rows_cut
    assert journal.read_bytes() == (content or b"")[:length]
    assert synced_length(journal) == length


def test_cut_back_with_a_shorter_journal_is_refused(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.write_bytes(b"one\n")
    with pytest.raises(OrderchainError, match="4 bytes, but 8 were stored"):
        cut_back(journal, 8)
    assert journal.read_bytes() == b"one\n"
