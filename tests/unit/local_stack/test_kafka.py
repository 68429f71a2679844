import asyncio

from local_stack.kafka import _new_cluster_id, broker_count
from tests.silent_server import silent_server


def test_new_cluster_id_never_looks_like_an_option() -> None:
    ids = [_new_cluster_id() for _ in range(500)]
    assert all(len(one) == 22 and one[0] != "-" for one in ids)


async def test_broker_that_says_nothing_is_none() -> None:
    async with silent_server() as port:
        assert await asyncio.to_thread(broker_count, port, 0.2) == 0
