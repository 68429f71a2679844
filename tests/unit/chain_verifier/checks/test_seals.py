import json
from pathlib import Path
from struct import pack
from typing import Any

import pytest

from chain_kernel.errors import SettingError
from chain_kernel.seal import Columns, page_image
from chain_verifier.checks.seals import IMAGES, BatchCheck
from chain_verifier.config import KeptSeal, parse_kept_seal

BEFORE = bytes.fromhex("3d39dfe600127ee73f12fac343e17b83855f82a5a049169f874659dc5271c7fe")
SEAL = bytes.fromhex("b11e63b3a54a8f12f3f8c5ad91df0038c9206185ed74e13926fb6c71ceb4529e")


def batch(**changes: Any) -> dict[str, Any]:
    """The second batch of the published vectors."""
    return {
        "first_id": 2,
        "id": 5,
        "prev_last_id": 1,
        "row_count": 2,
        "epoch": 1,
        "seal": SEAL,
        "seal_before": BEFORE,
        "epoch_before": 1,
        "committed_at_us": 1700000000001500,
    } | changes


def rows(**changes: list[Any]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {
        "id": [2, 5],
        "pid": [1, 2],
        "key": ["A-2", "Zürich"],
        "event_time_ns": [0, -1],
        "payload": [b"", b"\x00\xff"],
    }
    return columns | changes


def pages(*of: dict[str, list[Any]]) -> dict[str, bytes]:
    """The columns and headers of pages, as the database sends them of a batch."""
    columns = [[column for page in of for column in page[name]] for name in rows()]
    images = page_image(Columns(*columns)).columns if of and columns[0] else [b""] * len(IMAGES)
    headers = [
        pack(">iiIii", 1, 0, kind, len(column), 1)
        for page in of
        for kind, column in zip((20, 20, 25, 20, 17), page.values(), strict=True)
    ]
    return {"headers": b"".join(headers), **dict(zip(IMAGES, images, strict=True))}


def misfits(of: dict[str, Any], *held: dict[str, list[Any]]) -> list[dict[str, object]]:
    found = BatchCheck(bytes(32)).misfits(of | pages(*held))
    return [{name: v for name, v in one.items() if name != "computed"} for one in found]


def test_batch_with_its_own_rows_is_clean() -> None:
    vectors = Path(__file__).parents[3] / "vectors" / "seals.json"
    assert SEAL.hex() in json.dumps(json.loads(vectors.read_text(encoding="utf-8")))
    assert misfits(batch(), rows()) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"key": ["A-2", "Zurich"]},
        {"event_time_ns": [0, 0]},
        {"payload": [b"\x00", b"\xff"]},
        {"pid": [1, 1]},
        {"id": [2, 5], "payload": [b"\x00\xff", b""]},
    ],
)
def test_batch_with_any_column_changed_does_not_match_its_seal(changes: dict[str, Any]) -> None:
    expected = {"id": 2, "until_id": 5, "pid": 1, "kind": "seal_mismatch"}
    assert misfits(batch(), rows(**changes)) == [expected]


def test_batch_in_several_pages_has_the_same_seal() -> None:
    first = {name: column[:1] for name, column in rows().items()}
    last = {name: column[1:] for name, column in rows().items()}
    assert misfits(batch(), first, last) == []
    assert [one["kind"] for one in misfits(batch(), last, first)] == ["batch_range"]


@pytest.mark.parametrize(
    ("number", "header"),
    [
        (0, (2, 0, 20, 2, 1)),  # of two dimensions
        (1, (1, 0, 20, 2, 0)),  # counted from 0
        (1, (1, 0, 20, 3, 1)),
        (2, (1, 0, 25, 1, 1)),
        (4, (0, 0, 17, 0, 0)),  # without elements
    ],
)
def test_batch_whose_columns_do_not_fit_each_other_is_never_the_one_that_was_sealed(
    number: int, header: tuple[int, ...]
) -> None:
    """Where a column ends and the next begins is not shown by the bytes that a seal covers."""
    stored = pages(rows())
    at = number * 20
    stored["headers"] = (
        stored["headers"][:at] + pack(">iiIii", *header) + stored["headers"][at + 20 :]
    )
    (found,) = BatchCheck(bytes(32)).misfits(batch() | stored)
    assert found["kind"] in ("seal_mismatch", "batch_count")


@pytest.mark.parametrize("name", ["ids", "pids"])
def test_batch_with_a_null_for_a_number_is_not_the_one_that_was_sealed(name: str) -> None:
    stored = pages(rows())
    for image in (b"\xff" * 4 + stored[name][12:], stored[name][:12] + b"\xff" * 4, b""):
        (found,) = BatchCheck(bytes(32)).misfits(batch() | stored | {name: image})
        assert found["kind"] == "seal_mismatch"


def sealed(count: int) -> list[tuple[dict[str, Any], dict[str, list[Any]]]]:
    """Batches of one row each, behind one another, with true seals."""
    found, before = [], GENESIS
    for number in range(1, count + 1):
        held = rows(id=[number], pid=[number - 1], key=["k"], event_time_ns=[0], payload=[b""])
        line = batch(first_id=number, id=number, prev_last_id=number - 1, row_count=1,
                     seal_before=before, seal=b"")  # fmt: skip
        (misfit,) = BatchCheck(bytes(32)).misfits(line | pages(held))
        before = line["seal"] = misfit["computed"][0]
        found.append((line, held))
    return found


GENESIS = b"g" * 32


@pytest.mark.parametrize(
    ("seals", "rows_of", "named"),
    [
        ([], [], []),
        ([0], [], []),
        ([3], [], [3]),
        ([3, 4], [], [3, 4]),
        ([2, 4, 8], [], [2, 4, 8]),
        ([3], [4], [3, 4]),
        ([3], [3], [3, 4]),  # the seal that it had can be known no more
        ([4], [3], [3, 4]),
        ([], [3, 4, 7], [3, 4, 7]),
    ],
)
def test_batches_with_wrong_seals_or_rows_are_named_each_and_no_others(
    seals: list[int], rows_of: list[int], named: list[int]
) -> None:
    chain = sealed(8)
    for number in seals:
        if number:
            chain[number - 1][0]["seal"] = bytes([number]) * 32
        if number < 8:
            chain[number][0]["seal_before"] = bytes([number]) * 32
    for number in rows_of:
        chain[number - 1][1]["key"] = ["other"]
    check = BatchCheck(GENESIS)
    found = [one for line, held in chain for one in check.misfits(line | pages(held))]
    assert [one["id"] for one in found] == named
    assert {one["kind"] for one in found} <= {"seal_mismatch"}


def test_batch_with_another_count_says_so_and_nothing_else() -> None:
    short = {name: column[:1] for name, column in rows().items()}
    place = {"id": 2, "until_id": 5, "pid": 1}
    expected = place | {"kind": "batch_count", "count": 1, "expected_count": 2}
    assert misfits(batch(), short) == [expected]
    assert misfits(batch()) == [expected | {"count": 0}]


def test_kept_seal_with_the_form_of_the_export_is_parsed() -> None:
    assert parse_kept_seal(f"5:{SEAL.hex()}") == KeptSeal(id=5, seal=SEAL)


@pytest.mark.parametrize("text", ["", "5", "5:", "5:00", f"x:{SEAL.hex()}", f"-1:{SEAL.hex()}"])
def test_kept_seal_with_another_form_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match="ID:SEAL"):
        parse_kept_seal(text)
