"""What every filter promises, run against the one in memory and the one in a real Redis."""

from collections.abc import AsyncIterator

import pytest

from outbox.consumer.decisions import Seen
from outbox.consumer.filters import Filter, MemoryFilter, RedisFilter, RedisFilterConfig
from outbox.message import draw_message_ids

from ..hand_clock import HandClock
from .redis_server import RedisServer


@pytest.fixture(params=["memory", "redis"])
async def filtering(request: pytest.FixtureRequest) -> AsyncIterator[Filter]:
    made: Filter
    if request.param == "memory":
        made = MemoryFilter()
    else:
        made = RedisFilter(config_of(request.getfixturevalue("redis_server")))
    yield made
    await made.close()


def config_of(server: RedisServer, consumer: str = "clearing") -> RedisFilterConfig:
    return RedisFilterConfig(url=server.url, consumer=consumer, answer_seconds=5.0)


async def test_id_is_new_then_being_worked_on_then_done(filtering: Filter) -> None:
    ids = draw_message_ids(3)
    assert await filtering.see(ids) == [Seen.NEW] * 3
    assert await filtering.see(ids) == [Seen.WORKING] * 3
    await filtering.done(ids[:1])
    assert await filtering.see(ids) == [Seen.DONE, Seen.WORKING, Seen.WORKING]


async def test_cleared_id_is_new_again(filtering: Filter) -> None:
    ids = draw_message_ids(2)
    await filtering.see(ids)
    await filtering.clear(ids[:1])
    assert await filtering.see(ids) == [Seen.NEW, Seen.WORKING]


async def test_clear_forgets_nothing_that_is_done(filtering: Filter) -> None:
    ids = draw_message_ids(1)
    await filtering.done(ids)
    await filtering.clear(ids)
    assert await filtering.see(ids) == [Seen.DONE]


async def test_many_ids_are_answered_in_their_order(filtering: Filter) -> None:
    ids = draw_message_ids(5_000)
    await filtering.done(ids[::2])
    assert await filtering.see(ids) == [Seen.DONE, Seen.NEW] * 2_500


async def test_no_ids_are_no_question(filtering: Filter) -> None:
    assert await filtering.see([]) == []
    await filtering.done([])
    await filtering.clear([])


async def test_processes_of_one_consumer_share_a_redis_and_others_do_not(
    redis_server: RedisServer,
) -> None:
    ids = draw_message_ids(1)
    first, second = (RedisFilter(config_of(redis_server)) for _ in range(2))
    other = RedisFilter(config_of(redis_server, "ledger"))
    await first.done(ids)
    assert await second.see(ids) == [Seen.DONE]
    assert await other.see(ids) == [Seen.NEW]
    for each in (first, second, other):
        await each.close()


async def test_marks_in_redis_expire(redis_server: RedisServer) -> None:
    working, done = draw_message_ids(2)
    filtering = RedisFilter(config_of(redis_server))
    await filtering.see([working])
    await filtering.done([done])
    await filtering.close()
    left = {
        0 < int(redis_server.command("EVAL", _TTL, "0", at).strip(b":\r\n")) <= most
        for at, most in (("1", 3_600), ("2", 3_600))
    }
    assert left == {True}


async def test_redis_that_failed_is_left_alone_for_a_while_and_then_asked_again(
    redis_server: RedisServer,
) -> None:
    clock = HandClock(0)
    ids = draw_message_ids(1)
    filtering = RedisFilter(config_of(redis_server), clock)
    await filtering.done(ids)
    redis_server.kill()
    assert await filtering.see(ids) == [Seen.NEW]
    assert filtering.is_away
    redis_server.start()
    assert await filtering.see(ids) == [Seen.NEW]  # not asked: it would say so the first time too
    assert redis_server.command("DBSIZE") == b":0\r\n"
    clock.now_ns += 5_000_000_000
    assert not filtering.is_away
    assert await filtering.see(ids) == [Seen.NEW]
    assert redis_server.command("DBSIZE") == b":1\r\n"
    await filtering.close()


_TTL = "local keys = redis.call('KEYS', '*') return redis.call('TTL', keys[tonumber(ARGV[1])])"
