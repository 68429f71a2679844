from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from chain_kernel.errors import InputError
from orderchain_demo import DemoOptions
from orderchain_demo.handlers import MATCHING, PAYLOADS, VENUE, Matching, PayloadDigest
from orderchain_demo.preparation import (
    check_input,
    expected_state,
    input_in_background,
    write_order_flow,
)

if TYPE_CHECKING:
    from pathlib import Path

SEED = 17
FlowPayloads = Callable[[int, int], list[bytes]]

SSE = "seq,ts_ms,symbol,action,order_no,contra_order_no,side,price_e4,qty"


def nobody(_: int) -> None:
    """Nobody wants to know."""


def options(**changed: Any) -> DemoOptions:
    usual: dict[str, Any] = {"input": None, "orders": 300, "loss": 0.1, "seed": SEED}
    return DemoOptions(**(usual | {"duplicate": 0, "reorder": 0} | changed))


def test_apply_straight_with_a_flow_comes_to_what_matching_does(
    tmp_path: Path, flow_payloads: FlowPayloads
) -> None:
    path = tmp_path / "flow.csv"
    with path.open("w") as file:
        write_order_flow(file, SEED, 12_000)
    matching = Matching()
    matching.apply(flow_payloads(SEED, 12_000))
    told: list[int] = []
    expected = expected_state(path, told.append)
    assert expected.handler == MATCHING
    assert (expected.rows, expected.last_key) == (12_000, "flow.csv#12000")
    assert (expected.digest, expected.counters) == (matching.digest(), matching.counters())
    assert told == [5_000, 10_000, 12_000]


def test_apply_straight_with_a_venues_feed_rebuilds_its_books(tmp_path: Path) -> None:
    path = tmp_path / "feed.csv"
    path.write_text(f"{SSE}\n1,9,X,A,8,,S,100,10\n4,9,X,T,9,8,B,100,4\n9,8,X,D,8,,S,100,6\n")
    expected = expected_state(path, nobody)
    assert expected.handler == VENUE
    assert expected.counters["deletes"] == 1
    assert expected.counters["resting_orders"] == 0


def test_apply_straight_with_other_columns_digests_the_payloads(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps({"at": number, "what": "x"}) + "\n" for number in range(9))
    expected = expected_state(path, nobody)
    assert expected.handler == PAYLOADS
    assert expected.counters == {"payloads": 9}
    assert expected.digest != PayloadDigest().digest()


def test_apply_straight_with_a_row_that_cannot_be_read_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("a,b\n1,2\n1\n")
    with pytest.raises(InputError, match="line 3"):
        expected_state(path, nobody)


def test_check_input_with_a_wrong_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        check_input(tmp_path / "none.csv")


def test_preparing_without_an_input_generates_one(tmp_path: Path) -> None:
    with input_in_background(options(), tmp_path) as preparation:
        demo_input = preparation.result()
    assert demo_input.path == tmp_path / "orders.csv"
    assert demo_input.expected.rows == 300


def test_preparing_left_early_ends_its_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    with (
        pytest.raises(KeyboardInterrupt),
        input_in_background(options(orders=10_000_000), tmp_path),
    ):
        raise KeyboardInterrupt
    assert threading.active_count() == before


def test_preparing_with_a_bad_row_raises_it_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("a,b\n1,2\n1\n")
    with (
        input_in_background(options(input=path), tmp_path) as preparation,
        pytest.raises(InputError),
    ):
        preparation.result()
