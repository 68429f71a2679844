"""The compiled functions do what Python does, byte for byte, and refuse what it refuses."""

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, Final, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain_kernel import speed
from chain_kernel.errors import OrderError, SettingError
from chain_kernel.frame import FrameHeader, encode_frame
from chain_kernel.seal import Columns, column_pages
from sequencer.keys.memory import KeyTable, are_distinct, forms_of, hash_keys
from sequencer.order import Order, columns_of
from tests.programs import completed

try:
    COMPILED: Final[Any] = import_module("orderchain_speed")
except ModuleNotFoundError:
    pytest.skip("orderchain-speed is not built here", allow_module_level=True)


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = speed.native
    yield
    speed.native = before


def agree(made: Callable[[], object]) -> None:
    """Require that both implementations return, or refuse, the same."""
    outcomes = []
    for speed.native in (None, COMPILED):
        try:
            outcomes.append(made())
        except (OrderError, ValueError) as error:
            outcomes.append((type(error), str(error)))
    assert outcomes[0] == outcomes[1]


INT64 = st.integers(-(2**63), 2**63 - 1) | st.integers(-300, 70_000)
LENGTHS = st.sampled_from([1, 2, 3, 4, 8, 9, 16, 17, 32, 33, 64, 65, 96, 97, 128, 129, 144, 200,
                           239, 240, 241, 256, 512])  # fmt: skip
LETTERS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=9)
LONG = st.builds(lambda text, size: (text * size)[:size], LETTERS, LENGTHS)
CLIENTS = st.builds("{}#{}".format, st.sampled_from(["a", "b#", "é", ""]), st.integers(0, 2**65))
KEYS = LETTERS | LONG | CLIENTS | st.sampled_from(["a#01", "a#", "#1", "a#1x", "a#\u0661", "a#-1"])
PAYLOADS = st.binary(max_size=40) | st.sampled_from([bytes(255), bytes(256), bytes(70_000)])
ROWS = st.lists(st.tuples(KEYS, INT64, PAYLOADS), min_size=1, max_size=40)
ANYTHING = st.sampled_from(["", "\0", "\ud800", "x" * 513, b"k", None, 1, True, 2**63, 1.5])


@given(rows=ROWS, first=st.integers(2, 2**62), pid=INT64, packed=st.booleans())
def test_pages_and_frames_are_the_same(
    rows: list[tuple[str, int, bytes]], first: int, pid: int, packed: bool
) -> None:
    keys, times, payloads = (list(column) for column in zip(*rows, strict=True))
    ids = range(first, first + len(rows))
    columns = Columns(
        ids if packed else list(ids),
        (pid, *ids[:-1]),
        keys,
        cast("Any", np.array(times, np.int64)) if packed else times,
        payloads,
    )
    header = FrameHeader(
        chain_id=1, epoch=1, publisher_epoch=1, publisher_nonce=bytes(16), first_pid=first - 1,
        first_id=first, last_id=ids[-1], count=len(rows), seal_before=bytes(32),
    )  # fmt: skip
    plain = columns._replace(times_ns=times)
    speed.native = None
    expected = column_pages(plain, is_linked=True), encode_frame(header, plain, bytes(32))
    speed.native = COMPILED
    assert column_pages(columns, is_linked=True) == expected[0]
    assert encode_frame(header, columns, bytes(32)) == expected[1]


@given(keys=st.lists(KEYS, min_size=1, max_size=30), salt=st.integers(0, 2**64 - 1))
def test_hashes_and_forms_are_the_same(keys: list[str], salt: int) -> None:
    agree(lambda: hash_keys(keys, salt).tolist())

    def forms() -> object:
        found = forms_of(keys)
        return found and (list(found.free), found.firsts, found.lasts)

    agree(forms)


@given(
    rows=st.lists(st.tuples(KEYS, INT64 | st.none(), PAYLOADS), min_size=1, max_size=9),
    place=st.integers(0, 8),
    field=st.integers(0, 3),
    odd=ANYTHING,
)
def test_orders_are_taken_and_refused_alike(
    rows: list[Any], place: int, field: int, odd: object
) -> None:
    orders: list[Any] = [Order(key, payload, time_ns) for key, time_ns, payload in rows]
    if field < 3:
        given_: list[Any] = ["k", b"", 1]
        given_[field] = odd
        orders.insert(place, Order(*given_))
    elif odd is None:
        orders.insert(place, "no order")

    def taken() -> object:
        found = columns_of(orders)
        return (
            found.keys,
            found.payloads,
            list(found.times_ns),
            type(found.times_ns),
            found.total_bytes,
        )

    agree(taken)


@given(
    batches=st.lists(st.lists(st.integers(0, 90), min_size=1, max_size=60), max_size=20),
    window=st.sampled_from([1, 30, 500]),
    factor=st.sampled_from([1, 2**32, 0x9E3779B97F4A7C15]),
)
def test_tables_are_the_same(batches: list[list[int]], window: int, factor: int) -> None:
    tables = (KeyTable(window), KeyTable(window))
    last = 0
    for numbers in batches:
        hashes = np.array([number * factor % 2**64 for number in numbers], np.uint64)
        forgotten, found = [], []
        for speed.native, table in zip((None, COMPILED), tables, strict=True):
            forgotten.append(table.add(hashes, np.arange(last + 1, last + 1 + len(numbers))))
            found.append((sorted(table.find(hashes[:20])), are_distinct(hashes, hashes[:0])))
        assert forgotten[0] == forgotten[1]
        assert found[0] == found[1]
        for name in ("_newest", "_before", "_tags", "_ids"):
            assert np.array_equal(getattr(tables[0], name), getattr(tables[1], name)), name
        last += len(numbers)


ODD: Final = memoryview(bytearray(24))


@given(values=st.lists(INT64, min_size=1, max_size=9), shift=st.integers(1, 7))
def test_integers_are_read_at_any_address_and_from_what_others_may_write_to(
    values: list[int], shift: int
) -> None:
    count = len(values)
    held = bytearray(bytes(shift) + np.array(values, np.int64).tobytes())
    odd = memoryview(held)[shift:].cast("q")
    rows: tuple[Any, ...] = (range(1, count + 1), range(count), ["k"] * count, odd, [b""] * count)
    for name in ("images", "frame"):
        made = getattr(COMPILED, name)
        assert made(0, *rows) == made(0, *rows[:3], values, rows[4])


WRITES_MEANWHILE: Final = """
import sys, threading
import numpy as np
import orderchain_speed

count = 20_000
small, large = np.zeros(count, np.int64), np.full(count, 2**62, np.int64)
times, ended = small.copy(), threading.Event()

def write() -> None:  # numpy copies without the lock of the interpreter
    while not ended.is_set():
        np.copyto(times, large)
        np.copyto(times, small)

writer = threading.Thread(target=write)
writer.start()
sys.setswitchinterval(1e-6)
columns = range(1, count + 1), range(count), ["k"] * count, times, [b""] * count
for _ in range(200):
    orderchain_speed.frame(0, *columns)
ended.set()
writer.join()
"""


def test_column_that_another_thread_writes_to_costs_no_memory_of_others() -> None:
    done = completed(sys.executable, "-c", WRITES_MEANWHILE)
    assert (done.returncode, done.stderr) == (0, "")


WRONG: Final[dict[str, tuple[Any, ...]]] = {
    "columns of other lengths": ("images", 0, [1], [0, 1], ["k"], [1], [b""]),
    "no integer": ("images", 0, ["1"], [0], ["k"], [1], [b""]),
    "beyond 64 bits": ("frame", 8, [2**63], [0], ["k"], [1], [b""]),
    "a range beyond 64 bits": ("frame", 8, range(2**63 - 1, 2**63 + 1), [0] * 2, "kk", [1] * 2, []),
    "a range with steps": ("images", 0, range(1, 4, 2), [0, 1], ["k", "l"], [1, 1], [b"", b""]),
    "no text": ("images", 0, [1], [0], [b"k"], [1], [b""]),
    "no bytes": ("frame", 0, [1], [0], ["k"], [1], [""]),
    "text that is no UTF-8": ("hash_keys", ["\ud800"], 0),
    "a table of other widths": ("add", bytearray(8), bytearray(8), bytearray(8), bytearray(8), 1),
    "a table that is not writable": ("add", bytes(8), bytes(8), bytes(8), bytes(8), 1),
    "no columns": ("images",),
    "less than no room": ("frame", -1, [1], [0], ["k"], [1], [b""]),
    "more room than a header needs": ("frame", 2**63 - 2, [1], [0], ["k"], [1], [b""]),
    "a table at an odd address": ("add", *[ODD[1:13].cast("I")] * 3, bytes(8), 1),
    "hashes at an odd address": ("are_distinct", ODD[1:17].cast("Q")),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_no_caller_gives_is_an_error(case: str) -> None:
    name, *given_ = WRONG[case]
    with pytest.raises((TypeError, ValueError, OverflowError, BufferError)):
        getattr(COMPILED, name)(*given_)


def test_another_release_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(COMPILED, "API", 0)
    assert speed.load(None) is None
    with pytest.raises(SettingError, match="of this release"):
        speed.load("native")
