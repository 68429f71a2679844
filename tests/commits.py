"""One commit, from its beginning to its outcome."""

from collections.abc import Sequence

from chain_kernel.model import IntakeMark
from chain_kernel.ports import ChainStore
from chain_kernel.seal import Batch


async def commit(
    store: ChainStore, batch: Batch, *, published_id: int = 0, intake: Sequence[IntakeMark] = ()
) -> None:
    pending = await store.begin(batch, published_id=published_id, intake=intake)
    await pending.outcome()
