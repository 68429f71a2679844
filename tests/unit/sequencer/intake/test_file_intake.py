"""A file as an intake over a chain in memory: each row once, whatever the file is and was."""

import gzip
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from chain_kernel.errors import InputError, RetryError
from chain_kernel.limits import PAYLOAD_BYTES_MAX
from sequencer import FileIntake, FileIntakeStats, FileOptions

from ..builders import World

KEYED = FileOptions(key_column="k")


async def take(
    world: World, path: Path, options: FileOptions | None = None, **tuning: Any
) -> FileIntakeStats:
    async with world.sequencer(**{"batch_rows_max": 2} | tuning) as sequencer:
        with FileIntake(path, options) as intake:
            return await intake.run(sequencer)


def last_id(world: World) -> int:
    return world.rows()[-1].id


def summed(stats: FileIntakeStats) -> tuple[Any, ...]:
    return stats.orders, stats.repeats, stats.rows_before, stats.first_id, stats.last_id


async def test_file_is_taken_once_and_goes_on_where_it_ended(world: World, tmp_path: Path) -> None:
    path = tmp_path / "o.csv"
    path.write_text("n\n1\n2\n3\n")
    assert summed(await take(world, path)) == (3, 0, 0, 1, 3)
    assert summed(await take(world, path)) == (0, 0, 3, None, None)
    path.write_text("n\n1\n2\n3\n4\n")
    packed = tmp_path / "o.csv.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    last = await take(world, packed)  # a take-over skips ids
    assert summed(last) == (1, 0, 3, last_id(world), last_id(world))
    assert world.keys() == [f"o.csv#{number}" for number in (1, 2, 3, 4)]


async def test_keys_that_came_before_are_repeats(world: World, tmp_path: Path) -> None:
    path, other = tmp_path / "a.csv", tmp_path / "b.csv"
    path.write_text("k,n\na,1\nb,1\na,1\n")
    assert summed(await take(world, path, KEYED)) == (2, 1, 0, 1, 2)
    other.write_text("k,n\nb,1\nc,1\n")
    assert summed(await take(world, other, KEYED)) == (1, 1, 0, last_id(world), last_id(world))
    assert world.keys() == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("rows", "line", "taken"),
    [
        ("a,1\nb,1\nc\nd,1\n", "line 4", ["a", "b"]),
        ("a,1\na,2\nb,1\n", "line 3", ["a"]),
        ("a,1\nb,1\nc,1\nb,2\nd,1\n", "line 5", ["a", "b", "c"]),
    ],
    ids=["torn", "key of a row of its batch", "key of a batch before"],
)
async def test_row_that_is_refused_keeps_what_is_before_it_and_nothing_after_it(
    world: World, tmp_path: Path, rows: str, line: str, taken: list[str]
) -> None:
    path = tmp_path / "o.csv"
    path.write_text(f"k,n\n{rows}")
    with pytest.raises(InputError, match=line):
        await take(world, path, KEYED)
    assert world.keys() == taken
    fixed = [f"{key},1" for key in (*taken, "x", "y")]
    path.write_text("\n".join(["k,n", *fixed, ""]))
    assert (await take(world, path, KEYED)).orders == 2
    assert world.keys() == [*taken, "x", "y"]


async def test_rows_of_more_bytes_than_a_batch_are_taken_in_parts(
    world: World, tmp_path: Path
) -> None:
    path, tuning = tmp_path / "o.csv", {"batch_rows_max": 9, "batch_bytes_max": PAYLOAD_BYTES_MAX}
    path.write_text("k,n\n" + "".join(f"{key},{key * 100_000}\n" for key in "abcdea") + "b,1\n")
    with pytest.raises(InputError, match="line 8"):
        await take(world, path, KEYED, **tuning)
    assert world.keys() == list("abcde")
    assert [len(batch.events) for batch in world.chain.batches] == [2, 2, 1]
    path.write_text(path.read_text().replace("b,1\n", "f,1\n"))
    assert summed(await take(world, path, KEYED, **tuning))[:3] == (1, 0, 6)


async def test_same_name_in_another_folder_is_refused_until_it_is_named(
    world: World, tmp_path: Path
) -> None:
    first, other = (tmp_path / day / "part-0.csv" for day in ("day=1", "day=2"))
    for path, rows in ((first, "1\n2\n"), (other, "1\n2\n3\n")):
        path.parent.mkdir()
        path.write_text(f"n\n{rows}")
    assert (await take(world, first)).orders == 2
    with pytest.raises(InputError, match=f"2 rows .* {first.parent}; --input-name is 'part-0.csv'"):
        await take(world, other)
    assert (await take(world, other, FileOptions(name="day2.csv.gz"))).orders == 3
    assert world.keys() == [f"part-0.csv#{n}" for n in (1, 2)] + [
        f"day2.csv#{n}" for n in (1, 2, 3)
    ]
    # The first folder by another way; then the file itself, moved.
    (tmp_path / "latest").symlink_to(first.parent)
    first.write_text("n\n1\n2\n4\n")
    assert summed(await take(world, tmp_path / "latest" / first.name))[:3] == (1, 0, 2)
    moved = first.parent.rename(tmp_path / "archive") / first.name
    with pytest.raises(InputError, match="3 rows"):
        await take(world, moved)
    moved.write_text("n\n1\n2\n4\n5\n")
    assert summed(await take(world, moved, FileOptions(name=first.name)))[:3] == (1, 0, 3)
    assert summed(await take(world, moved))[:3] == (0, 0, 4)


async def test_file_that_was_taken_when_no_folder_was_recorded_goes_on(
    world: World, tmp_path: Path
) -> None:
    path = tmp_path / "o.csv"
    path.write_text("n\n1\n")
    await take(world, path)
    mark = world.chain.intake["file:o.csv"]
    world.chain.intake["file:o.csv"] = msgspec.structs.replace(mark, digest=mark.digest[:32])
    path.write_text("n\n1\n2\n")
    assert (await take(world, path)).orders == 1
    assert world.chain.intake["file:o.csv"].digest[32:] == os.fsencode(tmp_path)


async def test_file_that_another_process_took_is_left_to_it(world: World, tmp_path: Path) -> None:
    path = tmp_path / "o.csv"
    path.write_text("n\n1\n")
    with FileIntake(path) as intake:
        assert await intake.has_new(None, 10)
        await take(world, path)
        async with world.sequencer() as sequencer:
            with pytest.raises(RetryError, match="another process"):
                await intake.run(sequencer)
    assert world.keys() == ["o.csv#1"]
