from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from chain_kernel.errors import InputError
from orderchain_demo.matching import Matching
from orderchain_demo.preparation import expected_state, generated_input

if TYPE_CHECKING:
    from pathlib import Path

SEED = 17
FlowPayloads = Callable[[int, int], list[bytes]]


def test_generated_flow_comes_to_what_matching_does(
    tmp_path: Path, flow_payloads: FlowPayloads
) -> None:
    matching = Matching()
    matching.apply(flow_payloads(SEED, 12_000))
    seen: list[float] = []
    made = generated_input(tmp_path, SEED, 12_000, lambda rows, _: seen.append(rows))
    assert made.path == tmp_path / "orders.csv"
    expected = made.expected
    assert (expected.rows, expected.last_key) == (12_000, "orders.csv#12000")
    assert (expected.digest, expected.counters) == (matching.digest(), matching.counters())
    assert seen == [5_000, 10_000, 12_000, 17_000, 22_000, 24_000]


def test_rows_that_are_no_orders_are_in_the_digest_and_in_no_book(tmp_path: Path) -> None:
    digests = set()
    for what in ("x", "y"):
        path = tmp_path / f"{what}.jsonl.gz"
        with gzip.open(path, "wt") as file:
            file.writelines(json.dumps({"at": number, "what": what}) + "\n" for number in range(9))
        expected = expected_state(path, lambda _: None)
        counted = expected.counters
        assert (counted["events"], counted["refused"], counted["resting_orders"]) == (9, 9, 0)
        digests.add(expected.digest)
    assert len(digests) == 2


def test_row_that_cannot_be_read_is_named_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("a,b\n1,2\n1\n")
    with pytest.raises(InputError, match="line 3"):
        expected_state(path, lambda _: None)
