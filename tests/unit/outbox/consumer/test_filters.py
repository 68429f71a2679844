from uuid import UUID

import pytest

from chain_kernel.errors import SettingError
from outbox.consumer.decisions import Seen
from outbox.consumer.filters import MemoryFilter


def ids(begin: int, end: int) -> list[UUID]:
    return [UUID(int=number) for number in range(begin, end)]


async def test_memory_filter_forgets_the_oldest_and_stays_bounded() -> None:
    memory = MemoryFilter(ids_max=100)
    for begin in range(0, 1_000, 10):
        await memory.done(ids(begin, begin + 10))
    assert await memory.see(ids(960, 1_000)) == [Seen.DONE] * 40
    assert await memory.see(ids(0, 10)) == [Seen.NEW] * 10
    assert len(memory) <= 100


def test_memory_filter_of_one_id_is_refused() -> None:
    with pytest.raises(SettingError, match="ids_max"):
        MemoryFilter(ids_max=1)
