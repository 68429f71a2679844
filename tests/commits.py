"""One commit, from its beginning to its outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orderchain.model import IntakeMark
    from orderchain.ports import ChainStore
    from orderchain.seal import Batch


async def commit(
    store: ChainStore, batch: Batch, *, published_id: int = 0, intake: Sequence[IntakeMark] = ()
) -> None:
    pending = await store.begin(batch, published_id=published_id, intake=intake)
    await pending.outcome()
