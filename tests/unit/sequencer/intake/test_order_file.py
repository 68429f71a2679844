"""The same file again: what was taken is known, what changed is refused."""

import tracemalloc
from pathlib import Path

import pytest

from chain_kernel.errors import InputError
from chain_kernel.model import IntakeMark
from sequencer.intake.order_file import FileOptions, OrderFile
from sequencer.intake.rows import READ_BYTES_MAX
from tests.unit.sequencer.intake.conftest import Write

ROWS = "n,x\n" + "".join(f"{number},v{number}\n" for number in range(1, 101))


def mark_after(path: Path, *limits: int, **options: str) -> IntakeMark:
    """Return the mark after reads of these sizes."""
    mark: IntakeMark | None = None
    with OrderFile(path, FileOptions(**options)) as intake:  # type: ignore[arg-type]
        for limit in limits:
            portion = intake.read(limit)
            assert portion is not None
            mark = portion.mark
    assert mark is not None
    return mark


def pass_over(path: Path, taken: IntakeMark, **options: str) -> list[str]:
    """Pass over what was taken; return the keys behind it."""
    with OrderFile(path, FileOptions(**options)) as intake:  # type: ignore[arg-type]
        for _ in intake.pass_over(taken):
            pass
        portion = intake.read(1_000)
        return [] if portion is None else [order.key for order in portion.orders]


def place(mark: IntakeMark) -> tuple[int, bytes]:
    return mark.position, mark.digest


def test_mark_depends_on_the_rows_and_not_on_how_they_were_read(write: Write) -> None:
    path = write("o.csv", ROWS)
    marks = [mark_after(path, 60), mark_after(path, 10, 50), mark_after(path, *[1] * 60)]
    assert len(set(map(place, marks))) == 1
    assert [mark.previous for mark in marks] == [None, 10, 59]
    assert mark_after(path, 60).position == 60
    assert mark_after(path, 60).source == "file:o.csv"


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_mark_is_the_same_however_the_file_is_compressed(write: Write, suffix: str) -> None:
    assert mark_after(write("o.csv", ROWS), 70) == mark_after(write(f"o.csv{suffix}", ROWS), 70)


@pytest.mark.parametrize("taken", [1, 37, 100])
def test_file_again_goes_on_behind_what_was_taken(write: Write, taken: int) -> None:
    path = write("o.csv", ROWS)
    keys = pass_over(path, mark_after(path, taken))
    assert keys == [f"o.csv#{number}" for number in range(taken + 1, 101)]


@pytest.mark.parametrize(
    "changed",
    [
        ROWS.replace("7,v7\n", "7,w7\n"),
        ROWS.replace("7,v7\n", ""),
        ROWS.replace("n,x\n", "n,y\n"),
        ROWS.replace("1,v1\n2,v2\n", "2,v2\n1,v1\n"),
        ROWS.replace("1,v1\n", "1v,1\n", 1),
    ],
)
def test_file_with_a_changed_beginning_is_refused(write: Write, changed: str) -> None:
    mark = mark_after(write("o.csv", ROWS), 50)
    with pytest.raises(InputError, match="the beginning of the file has changed"):
        pass_over(write("o.csv", changed), mark)


def test_file_read_by_other_columns_than_before_is_refused(write: Write) -> None:
    path = write("o.csv", f"n,x,t_ms\n1,v1,{10**12}\n2,v2,{10**12}\n")
    mark = mark_after(path, 1)
    for options in ({"key_column": "n"}, {"time_column": "t_ms"}):
        with pytest.raises(InputError, match="same columns"):
            pass_over(path, mark, **options)
    mark = mark_after(path, 1, time_column="t_ms")
    with pytest.raises(InputError, match="same columns"):
        pass_over(path, mark)
    assert pass_over(path, mark, time_column="t_ms", time_unit="ms") == ["o.csv#2"]


def test_file_of_long_rows_is_read_in_portions_that_fit_the_memory(write: Write) -> None:
    rows = 200
    path = write("long.csv.gz", "a\n" + ("x" * 200_000 + "\n") * rows)
    tracemalloc.start()
    with OrderFile(path, FileOptions()) as intake:
        read = 0
        while (portion := intake.read(5_000)) is not None:
            read += len(portion.orders)
        _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert read == rows
    assert peak < 12 * READ_BYTES_MAX
