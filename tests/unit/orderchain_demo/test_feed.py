from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest

from chain_kernel.errors import InputError
from orderchain_demo.feed import generated_input, read_input

if TYPE_CHECKING:
    from pathlib import Path


def test_generated_input_is_read_to_its_end_and_shows_how_far(tmp_path: Path) -> None:
    seen: list[int] = []
    made = generated_input(tmp_path, 17, 12_000, seen.append)
    assert (made.path, made.rows) == (tmp_path / "orders.csv", 12_000)
    assert made.last_key == "orders.csv#12000"
    assert seen == [5_000, 10_000, 12_000]
    assert read_input(made.path, seen.append) == made


def test_rows_that_are_no_orders_are_in_the_digest(tmp_path: Path) -> None:
    digests = set()
    for what in ("x", "y"):
        path = tmp_path / f"{what}.jsonl.gz"
        with gzip.open(path, "wt") as file:
            file.writelines(json.dumps({"at": number, "what": what}) + "\n" for number in range(9))
        digests.add(read_input(path, lambda _: None).digest)
    assert len(digests) == 2


def test_row_that_cannot_be_read_is_named_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("a,b\n1,2\n1\n")
    with pytest.raises(InputError, match="line 3"):
        read_input(path, lambda _: None)
