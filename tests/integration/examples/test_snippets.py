"""The parts of programs that the pages show, run over real servers as they are written there.

Whole programs are run by the guides' tests and by `test_examples`.
"""

import asyncio
import inspect
import os
import types
from ast import PyCF_ALLOW_TOP_LEVEL_AWAIT
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import asyncpg
import pytest

from chainctl.admin import create_chain
from local_stack import KafkaServer, PostgresServer
from local_stack.postgres import SUPERUSER
from orderchain import Event
from outbox import (
    Consumer,
    ConsumerConfig,
    Delivery,
    Destination,
    Relay,
    RelayConfig,
    save_destinations,
)
from tests.certificates import Authority
from tests.deadlines import deadline
from tests.pages import PAGES, ROOT, Block, blocks_of

ELSEWHERE: Final = {
    "test_embedding_guide": ("tutorial.md", "embed-a-"),
    "orderchain/test_seal": ("seal.md",),
    "simulation/test_guide": ("simulation.md",),
    "chain_verifier/dataframe/test_page": ("spark.md",),
    "outbox/test_other_drivers": ("psycopg", "sqlalchemy", "django"),
    "local_stack/test_pytest_plugin": ("handlers.py", "orderchain_outbox"),
    "outbox/test_mode_06_prepared_message": ("client.prepared",),
    "test_http mounts one": ("app.mount",),
}
"""Which test runs a part, by what its page, title or text contains."""

HERE: Final = [
    block
    for page in PAGES
    for block in blocks_of(page)
    if block.language == "python"
    and not any(
        word in f"{block.page.name} {block.title} {block.text}"
        for words in ELSEWHERE.values()
        for word in words
    )
]


def part(page: str, containing: str) -> Block:
    """Return the one part of a page that contains a word."""
    (found,) = [each for each in HERE if each.page == ROOT / page and containing in each.text]
    return found


async def run(block: Block, names: dict[str, Any], replaced: dict[str, str] | None = None) -> None:
    """Run a part with these names around it; new ones are in `names` afterwards."""
    text = block.text
    for there, here in (replaced or {}).items():
        assert there in text, there
        text = text.replace(there, here)
    code = compile(text, str(block), "exec", PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    outcome = types.FunctionType(code, names)()
    if inspect.iscoroutine(outcome):
        await outcome


async def until(event: asyncio.Event, work: asyncio.Task[None]) -> None:
    """Wait for what the work does, then end it: the parts show loops that run until stopped."""
    waiting = asyncio.create_task(event.wait())
    async with deadline():
        await asyncio.wait([waiting, work], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    work.cancel()
    outcome = (await asyncio.gather(work, return_exceptions=True))[0]
    assert isinstance(outcome, asyncio.CancelledError), outcome


class Book:
    """The matching service's own state, and the clearing service's handler."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.done = asyncio.Event()

    async def apply(self, events: Sequence[Event], connection: asyncpg.Connection) -> None:
        assert connection.is_in_transaction()
        self.seen += [event.payload for event in events]
        self.done.set()

    async def __call__(self, deliveries: Sequence[Delivery], connection: object) -> None:
        self.seen += [delivery.payload for delivery in deliveries]
        self.done.set()


def test_each_part_is_run_here_or_named_with_the_test_that_runs_it() -> None:
    pages = {str(block.page.relative_to(ROOT)) for block in HERE}
    assert pages == {
        "README.md", "docs/backup.md", "docs/choosing-a-delivery-mode.md", "docs/operations.md",
    }  # fmt: skip
    assert len(HERE) == 5


async def test_readme_sequences_an_order_and_matches_it(stack_environment: dict[str, str]) -> None:
    chain = int.from_bytes(os.urandom(3)) + 1
    dsn, kafka = stack_environment["CHAINCTL_DATABASE"], stack_environment["CHAINCTL_KAFKA"]
    connection = await asyncpg.connect(dsn)
    await create_chain(connection, kafka, chain)
    book = Book()
    names = {
        "dsn": dsn,
        "read_only_dsn": stack_environment["CHAINCTL_GAP_DATABASE"],
        "payload": b"an order",
        "connection": connection,
        "book": book,
    }
    here = {"chain_id=1": f"chain_id={chain}", "localhost:9092": kafka}
    await until(
        book.done, asyncio.create_task(run(part("README.md", "open_receiver"), names, here))
    )
    assert (names["ack"].id, names["ack"].pid) == (1, 0)
    assert book.seen == [b"an order"]
    await connection.close()


async def test_consumer_whose_database_was_restored_is_moved_back_and_applies_what_was_lost(
    postgres_server: PostgresServer,
    kafka_server: KafkaServer,
    database_with: Callable[..., str],
) -> None:
    dsn = postgres_server.dsn(SUPERUSER, database_with("outbox", "inbox"))
    topic, kafka = f"clearing-{os.urandom(4).hex()}", kafka_server.bootstrap
    connection = await asyncpg.connect(dsn)
    clearing = Destination(name="clearing", topic=topic, consumers=("clearing",))
    async with connection.transaction():
        await save_destinations(connection, [clearing], create_topics=kafka)
    config = ConsumerConfig(name="clearing", topics=(topic,), kafka=kafka, database=dsn)

    async def book_one(then: str) -> list[bytes]:
        book = Book()
        async with Consumer(config) as consumer:
            working = asyncio.create_task(consumer.run_many(book))
            async with relay.transaction(connection) as business:
                await business.add("clearing", then.encode(), key=then)
            async with deadline():
                await book.done.wait()
                consumer.stop()
                await working
        return book.seen

    async with Relay(RelayConfig(database=dsn, kafka=kafka)) as relay:
        restored_to = datetime.now(UTC)
        assert await book_one("lost") == [b"lost"]
        await connection.execute("DELETE FROM inbox")  # the restored database is without it
        assert await book_one("next") == [b"next"], "the broker does not give it again by itself"
        names = {"config": config, "restored_to": restored_to}
        await run(part("docs/backup.md", "move_start"), names)
        assert (await book_one("last"))[0] == b"lost"
    await connection.close()


async def test_page_on_modes_makes_a_relay_and_a_consumer() -> None:
    dsn = "postgresql://app@127.0.0.1/business"
    names = dict.fromkeys(("business_database", "clearing_database"), dsn) | {"kafka": "k:9092"}
    block = part("docs/choosing-a-delivery-mode.md", "RelayConfig")
    await run(block, names)
    assert {"relay", "consumer"} <= names.keys()


@pytest.mark.parametrize("name", ["DatabaseConfig", "KafkaConfig"])
async def test_configs_of_the_operations_page_are_taken(name: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path).path.read_bytes()
    for file in ("database-ca.pem", "kafka-ca.pem"):
        (tmp_path / file).write_bytes(authority)
    for file in ("kafka-password", "pgpass"):
        (tmp_path / file).write_text("*:*:*:*:secret\n", encoding="utf-8")
        (tmp_path / file).chmod(0o600)
    names: dict[str, Any] = {}
    block = part("docs/operations.md", f"import {name}\n")
    await run(block, names, {"/etc/orderchain": str(tmp_path)})
    assert any(type(each).__name__ == name for each in names.values())
