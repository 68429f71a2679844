import random
from pathlib import Path

import pytest

from chain_kernel.errors import InputError
from chain_kernel.files import LINE_BYTES_MAX
from chain_verifier.config import JournalSource
from chain_verifier.sources.journal import JournalRows
from tests.integration.chain_verifier.planted_faults import chain_of, write_journal

ROWS = chain_of(random.Random(8), 9)


@pytest.mark.parametrize("torn", ["", '{"chain_id":', "{}"])
@pytest.mark.parametrize("size", [1, 2, 70, 100, 999])
def test_ranges_of_any_size_hold_each_line_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, torn: str
) -> None:
    path = write_journal(tmp_path / "j.jsonl", ROWS, torn)
    whole = path.read_bytes().splitlines(keepends=True)
    monkeypatch.setattr("chain_verifier.sources.journal._RANGE_BYTES", size)
    rows = JournalRows(JournalSource(path=str(path)))
    found = [line for each in rows.ranges() for page in rows.lines(each) for line in page]
    assert found == (whole[:-1] if torn.endswith(":") else whole)
    assert bool(rows.notes()) == torn.endswith(":")


def test_row_after_bytes_that_fill_a_line_is_no_line(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    path.write_bytes(b"x" * LINE_BYTES_MAX + ROWS[0].line().encode() + b"\n")
    with pytest.raises(InputError) as refused:
        list(JournalRows(JournalSource(path=str(path))).pages())
    assert refused.value.line == 1
