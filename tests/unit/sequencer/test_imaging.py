from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orderchain.event import Event
from orderchain.limits import ID_MAX
from orderchain.row_image import row_images
from sequencer.columns import columns_of
from sequencer.imaging import batch_images
from sequencer.order import Order

ROWS = st.tuples(
    st.text(
        st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=9
    ),
    st.integers(-(2**63), 2**63 - 1),
    st.binary(max_size=40),
)


@given(
    chain_id=st.integers(1, 2**31 - 1),
    first_id=st.integers(2, ID_MAX - 200),
    pid_below=st.integers(1, 10),
    rows=st.lists(ROWS, min_size=1, max_size=70),
)
def test_images_of_columns_are_those_of_the_rows(
    chain_id: int, first_id: int, pid_below: int, rows: list[tuple[str, int, bytes]]
) -> None:
    pid = max(first_id - pid_below, 0)
    ids = range(first_id, first_id + len(rows))
    pids = [pid, *ids[:-1]]
    columns = columns_of([Order(key, payload, time_ns) for key, time_ns, payload in rows])
    events = [Event(id_, before, *row) for id_, before, row in zip(ids, pids, rows, strict=True)]
    times_ns = [event.event_time_ns for event in events]
    assert batch_images(chain_id, pid, ids, columns, times_ns) == row_images(chain_id, events)
