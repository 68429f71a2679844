"""The same file again: what was taken is known, what changed is refused."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import pytest

from chain_kernel.errors import InputError
from sequencer.intake.file import FileOptions, OrderFile
from sequencer.intake.rows import READ_BYTES_MAX

if TYPE_CHECKING:
    from pathlib import Path

    from chain_kernel.model import IntakeMark
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


def test_file_that_grew_goes_on_with_its_new_rows(write: Write) -> None:
    mark = mark_after(write("o.csv", ROWS), 100)
    assert pass_over(write("o.csv", ROWS + "101,new\n"), mark) == ["o.csv#101"]


def test_file_with_a_bad_row_fixed_goes_on_with_it(write: Write) -> None:
    path = write("o.csv", ROWS.replace("41,v41\n", "41\n"))
    mark = mark_after(path, 1_000)
    assert mark.position == 40
    assert pass_over(write("o.csv", ROWS), mark)[0] == "o.csv#41"


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


def test_file_shorter_than_what_was_taken_is_refused(write: Write) -> None:
    mark = mark_after(write("o.csv", ROWS), 100)
    with pytest.raises(InputError, match="at least the 100 rows") as refused:
        pass_over(write("o.csv", "".join(ROWS.splitlines(keepends=True)[:51])), mark)
    assert "(50 rows)" in str(refused.value)


def test_file_that_became_bad_within_what_was_taken_is_refused_by_line(write: Write) -> None:
    mark = mark_after(write("o.csv", ROWS), 50)
    with pytest.raises(InputError, match="line 11"):
        pass_over(write("o.csv", ROWS.replace("10,v10\n", "10\n")), mark)


def test_part_of_a_portion_has_the_mark_that_a_shorter_read_would_have(write: Write) -> None:
    path = write("o.csv", ROWS)
    with OrderFile(path, FileOptions()) as intake:
        intake.read(10)
        portion = intake.read(50)
    assert portion is not None
    part = portion.part(5, 20)
    assert [order.key for order in part.orders] == [f"o.csv#{n}" for n in range(16, 31)]
    assert place(part.mark) == place(mark_after(path, 30))
    assert place(part.part(3, 4).mark) == place(mark_after(path, 19))
    assert part.line_of(0) == 17
    assert place(portion.mark) == place(mark_after(path, 60))
    # Each follows the one before it, wherever a portion is cut.
    assert (portion.mark.previous, part.mark.previous) == (10, 15)
    assert part.part(3, 4).mark.previous == 18


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


def test_file_of_many_rows_takes_no_more_memory_than_one_portion(write: Write) -> None:
    path = write("many.csv.gz", "a,b\n" + "1234567890,abcdefghij\n" * 40_000)
    tracemalloc.start()
    with OrderFile(path, FileOptions()) as intake:
        while intake.read(1_000) is not None:
            pass
        _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert intake.position == 40_000
    assert peak < 4 * 1024 * 1024
