"""Page images: what PostgreSQL's binary COPY takes for arrays, which the seal covers too."""

import struct
from itertools import cycle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chain_kernel.limits import CHAIN_ID_MAX, ID_MAX
from chain_kernel.model import Event, is_linked
from chain_kernel.seal import (
    PAGE_BYTES_MAX,
    PAGE_ROWS_MAX,
    Columns,
    PageImage,
    column_pages,
    event_pages,
    is_linked_page,
    page_events,
)

PATIENT = settings(deadline=None, print_blob=True)

_events = st.builds(
    Event,
    id=st.integers(1, ID_MAX),
    pid=st.integers(0, ID_MAX),
    key=st.text(min_size=1, max_size=12),
    event_time_ns=st.integers(-(2**63), 2**63 - 1),
    payload=st.binary(max_size=12),
)


def element(value: int | str | bytes) -> bytes:
    """Return one element of an array in COPY BINARY as PostgreSQL documents it."""
    image = struct.pack(">q", value) if isinstance(value, int) else value
    image = image.encode() if isinstance(image, str) else image
    return struct.pack(">i", len(image)) + image


def columns_of(events: list[Event]) -> list[list[int | str | bytes]]:
    return [[getattr(event, name) for event in events] for name in Event.__struct_fields__]


def content_of(events: list[Event]) -> bytes:
    """Return what a seal covers of `events`, however they are paged."""
    return b"".join(
        map(b"".join, zip(*(page.columns for page in event_pages(events)), strict=True))
    )


@PATIENT
@given(
    chain_id=st.integers(1, CHAIN_ID_MAX),
    few=st.lists(_events, min_size=1, max_size=8),
    times=st.sampled_from([1, 40]),  # few integers are laid out otherwise than many
)
def test_copied_page_is_a_copy_tuple(chain_id: int, few: list[Event], times: int) -> None:
    events = few * times
    (page,) = event_pages(events)
    fields = [
        struct.pack(">i", chain_id),
        struct.pack(">q", events[0].id),
        struct.pack(">q", events[-1].id),
    ]
    for kind, column in zip((20, 20, 25, 20, 17), columns_of(events), strict=True):
        header = struct.pack(">iiiii", 1, 0, kind, len(events), 1)
        fields.append(header + b"".join(map(element, column)))
    expected = struct.pack(">h", 8)
    expected += b"".join(struct.pack(">i", len(field)) + field for field in fields)
    assert b"".join(page.copied(chain_id)) == expected


@PATIENT
@given(
    first=st.lists(_events, min_size=1, max_size=3),
    second=st.lists(_events, min_size=1, max_size=3),
)
def test_contents_of_different_rows_differ(first: list[Event], second: list[Event]) -> None:
    if len(first) == len(second):  # the number of rows is hashed beside the content
        assert (content_of(first) == content_of(second)) is (first == second)


def rows(*payload_sizes: int) -> list[Event]:
    return [Event(at, at - 1, "k", 0, bytes(size)) for at, size in enumerate(payload_sizes, 1)]


ROW_BYTES = 12 + 12 + 5 + 12 + 4
"""The bytes of a row with a key of one byte and no payload."""


@pytest.mark.parametrize(
    ("events", "row_counts"),
    [
        (rows(*[0] * PAGE_ROWS_MAX), [PAGE_ROWS_MAX]),
        (rows(*[0] * (PAGE_ROWS_MAX + 1)), [PAGE_ROWS_MAX // 2 + 1, PAGE_ROWS_MAX // 2]),
        (rows(*[0] * (3 * PAGE_ROWS_MAX)), [PAGE_ROWS_MAX] * 3),
        (rows(PAGE_BYTES_MAX - 2 * ROW_BYTES, 0), [2]),
        (rows(PAGE_BYTES_MAX - 2 * ROW_BYTES + 1, 0), [1, 1]),
        (rows(PAGE_BYTES_MAX + 9, PAGE_BYTES_MAX + 9, 0, 0), [1, 1, 2]),
        (rows(0, PAGE_BYTES_MAX, 0), [1, 1, 1]),
        (rows(*[PAGE_BYTES_MAX // 4] * 7), [3, 2, 2]),
    ],
    ids=lambda value: str(value) if isinstance(value[0], int) else "",
)
def test_pages_end_by_rows_and_by_bytes(events: list[Event], row_counts: list[int]) -> None:
    pages = event_pages(events)
    assert [page.row_count for page in pages] == row_counts
    starts = [sum(row_counts[:at]) for at in range(len(row_counts))]
    assert [page.first_id for page in pages] == [events[at].id for at in starts]
    assert [page.last_id for page in pages] == [
        events[at + count - 1].id for at, count in zip(starts, row_counts, strict=True)
    ]
    whole = [b"".join(map(element, column)) for column in columns_of(events)]
    assert content_of(events) == b"".join(whole)


@PATIENT
@given(
    first=st.integers(2, 2**62),
    pid=st.integers(0, 1),
    sizes=st.lists(st.integers(0, 3_000), min_size=1, max_size=9),
    times=st.sampled_from([1, 20, 300]),
)
def test_pages_are_those_of_the_rows(first: int, pid: int, sizes: list[int], times: int) -> None:
    payloads = [bytes(size) for size in sizes] * times
    ids = tuple(range(first, first + len(payloads)))
    pids = (pid, *ids[:-1])
    keys = [f"k{n % 13}" for n in range(len(ids))]
    made = map(Event, ids, pids, keys, ids, payloads)
    linked = column_pages(Columns(ids, pids, keys, ids, payloads), is_linked=True)
    assert linked == event_pages(list(made))


_sizes = st.sampled_from([0, 1, 2, 3, 9, 10, 127, 128, 195, 255, 256, 257, 512])
_letters = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=9)
_keys = st.lists(_letters | st.builds(str.__mul__, st.sampled_from("k€ü"), _sizes), min_size=1)


@PATIENT
@given(
    keys=_keys,
    payload_sizes=st.lists(_sizes, min_size=1),
    skips=st.lists(st.integers(1, 2**40), min_size=1),
    first_pid=st.integers(0, 1),
    times=st.sampled_from([1, 40]),
)
def test_rows_of_a_page_are_those_that_it_was_made_of(
    keys: list[str], payload_sizes: list[int], skips: list[int], first_pid: int, times: int
) -> None:
    columns = zip(keys * times, cycle(payload_sizes), cycle(skips))
    events, pid = [], first_pid
    for key, size, skip in columns:
        events.append(Event(pid + skip, pid, key, -pid, bytes(size)))
        pid += skip
    pages = event_pages(events)
    assert [row for page in pages for row in page_events(page)] == events
    assert tuple(PageImage.of_columns(*page.columns) for page in pages) == pages


@PATIENT
@given(
    links=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), min_size=1, max_size=6),
    after_id=st.integers(0, 4),
)
def test_a_page_is_linked_where_its_rows_are(links: list[tuple[int, int]], after_id: int) -> None:
    events = [Event(row_id, pid, "k", 0, b"") for row_id, pid in links]
    (page,) = event_pages(events)
    assert is_linked_page(after_id, page) == is_linked(after_id, events)


def test_a_page_of_consecutive_rows_is_not_linked_where_two_of_them_changed_places() -> None:
    ids = list(range(7, 1_007))
    (page,) = event_pages([Event(of, of - 1, "k", 0, b"") for of in ids])
    assert is_linked_page(6, page)
    ids[500], ids[501] = ids[501], ids[500]
    pids = [6, *ids[:-1]]
    (page,) = event_pages([Event(*row, "k", 0, b"") for row in zip(ids, pids, strict=True)])
    assert (page.first_id, page.last_id, page.row_count) == (7, 1_006, 1_000)
    assert not is_linked_page(6, page)
