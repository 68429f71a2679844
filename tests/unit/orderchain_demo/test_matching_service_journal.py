from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from chain_kernel.errors import OrderchainError
from orderchain_demo.matching_service import cut_back, synced_length

if TYPE_CHECKING:
    from pathlib import Path


def test_synced_length_with_missing_journal_is_zero(tmp_path: Path) -> None:
    assert synced_length(tmp_path / "none") == 0


def test_cut_back_with_longer_journal_cuts_and_counts_whole_rows(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.write_bytes(b"one\ntwo\nthree\nto")
    assert cut_back(journal, 4) == 2
    assert journal.read_bytes() == b"one\n"
    assert synced_length(journal) == 4


@pytest.mark.parametrize("content", [b"", b"one\n"])
def test_cut_back_with_journal_of_that_length_changes_nothing(
    content: bytes, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    journal.write_bytes(content)
    assert cut_back(journal, len(content)) == 0
    assert journal.read_bytes() == content


def test_cut_back_to_nothing_with_missing_journal_makes_none(tmp_path: Path) -> None:
    assert cut_back(tmp_path / "none", 0) == 0
    assert not (tmp_path / "none").exists()


def test_cut_back_with_shorter_journal_is_refused(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.write_bytes(b"one\n")
    with pytest.raises(OrderchainError, match="4 bytes, but 8 were stored"):
        cut_back(journal, 8)
    assert journal.read_bytes() == b"one\n"
