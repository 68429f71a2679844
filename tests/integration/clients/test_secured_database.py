"""The whole path over a PostgreSQL that asks for TLS, by password and by certificate.

Spark's part stands in `tests/spark/test_secured.py`, the command line's in
`tests/cli/test_secured_database.py`.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from typing import TYPE_CHECKING

import pytest

from chain_verifier.config import DatabaseSource, VerifyRequest
from chain_verifier.local.verify import verify_locally
from chain_verifier.marks import read_standing
from chainctl.commands.chain import ChainPlan, create_chain
from chainctl.settings import Settings
from local_stack.postgres import SUPERUSER
from orderchain import Order, ReceiverConfig, SequencerConfig, open_receiver, open_sequencer
from orderchain.clients.database_config import DatabaseConfig
from orderchain.errors import ConnectError
from tests.certificates import HOST, Authority
from tests.secured_postgres import CERTIFIED, SecuredPostgres
from tests.sockets import no_socket_left

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from local_stack import KafkaServer

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]

ROWS = 100
SECONDS = 60.0


@pytest.fixture
def secured(secured_postgres: SecuredPostgres) -> SecuredPostgres:
    return secured_postgres


@pytest.fixture
def database_name(secured: SecuredPostgres) -> str:
    name = f"test_{secrets.token_hex(8)}"
    secured.make_database(name)
    return name


Reached = str | DatabaseConfig


@pytest.fixture(params=["password", "certificate", "url", "keywords", "environment"])
def reached(
    request: pytest.FixtureRequest,
    secured: SecuredPostgres,
    database_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Reached:
    """The database, as one of the ways to say it says it."""
    authority = str(secured.authority.path)
    monkeypatch.delenv("PGPASSWORD", raising=False)
    match request.param:
        case "password":
            return secured.right(dbname=database_name)
        case "certificate":
            files = secured.authority.client(CERTIFIED)
            return secured.certified(files, dbname=database_name)
        case "url":
            return secured.url(
                database_name, sslmode="verify-full", sslrootcert=authority, password="for-trade"
            )
        case "keywords":
            return (
                f"host=localhost port={secured.port} user=trader password=for-trade "
                f"dbname={database_name} sslmode=verify-full sslrootcert='{authority}'"
            )
    for name, value in secured.environment.items():
        monkeypatch.setenv(name, value)
    return secured.url(database_name)


async def make_chain(secured: SecuredPostgres, database_name: str, kafka: KafkaServer) -> int:
    """Create a chain as an operator does; the broker is shared, so its number is of this test."""
    chain_id = random.SystemRandom().randrange(1_000, 2**31)
    settings = Settings(
        database=secured.server.dsn(SUPERUSER, database_name).replace("127.0.0.1", HOST),
        kafka=kafka.bootstrap,
    )
    plan = ChainPlan(chain_id=chain_id, topic=None, partition_ids=None)
    assert (await create_chain(settings, plan)).chain_created
    return chain_id


async def test_chain_is_sequenced_received_filled_and_verified(
    secured: SecuredPostgres, database_name: str, reached: Reached, kafka_server: KafkaServer
) -> None:
    chain_id = await make_chain(secured, database_name, kafka_server)
    kafka = kafka_server.bootstrap
    sent = [b"%d" % number for number in range(ROWS)]
    received: list[bytes] = []
    orders = [Order(f"client#{number}", payload) for number, payload in enumerate(sent)]
    async with asyncio.timeout(SECONDS):
        async with open_sequencer(
            SequencerConfig(chain_id=chain_id, database=reached, kafka=kafka)
        ) as sequencer:
            await sequencer.submit_many(orders)
        # Whatever was published before it came is filled from the database.
        config = ReceiverConfig(
            chain_id=chain_id, name="any", database=reached, kafka=kafka, to_head_at_start=True
        )
        async with open_receiver(config) as receiver:
            async for run in receiver:
                received += [event.payload for event in run.events]
                await receiver.checkpoint(run)
            assert receiver.stats().rows_live == 0
    assert received == sent
    request = VerifyRequest(chain_id=chain_id, sources=(DatabaseSource(database=reached),))
    report = await asyncio.to_thread(verify_locally, request)
    assert report.is_clean, report.findings
    assert report.sources[0].rows == ROWS
    standing = await asyncio.to_thread(read_standing, reached, chain_id)
    assert standing.head == report.head


@pytest.mark.parametrize("part", ["sequencer", "receiver", "fill", "verifier", "marks"])
async def test_part_by_a_wrong_config_is_refused_in_one_line_that_says_why(
    secured: SecuredPostgres, database_name: str, part: str, tmp_path: Path
) -> None:
    other = Authority(tmp_path, "other")
    stranger = other.client(CERTIFIED)
    right = secured.authority.client(CERTIFIED)
    for wrong, words in (
        (secured.right(dbname=database_name, sslmode="disable", sslrootcert=""), "ask for TLS?"),
        (secured.right(dbname=database_name, password="Tr0ub4dor"), "wrong user or password"),
        (secured.right(dbname=database_name, host="127.0.0.1"), "host that was asked for"),
        (secured.right(dbname=database_name, sslrootcert=str(other.path)), "signed by sslrootcert"),
        (
            secured.certified(right, dbname=database_name, sslcert=str(stranger.certificate),
                              sslkey=str(stranger.key)),
            "a client certificate that the server accepts",
        ),
    ):  # fmt: skip
        async with no_socket_left():
            with pytest.raises(ConnectError) as refused:
                await PARTS[part](wrong)
        assert words in str(refused.value)
        assert "\n" not in str(refused.value)
        assert "Tr0ub4dor" not in str(refused.value)


async def _sequence(database: Reached) -> None:
    async with open_sequencer(SequencerConfig(chain_id=1, database=database, kafka="k:1")):
        pass


async def _receive(database: Reached) -> None:
    config = ReceiverConfig(chain_id=1, name="any", database=database, kafka="k:1")
    async with open_receiver(config):
        pass


async def _fill(database: Reached) -> None:
    # The place is kept elsewhere: only the reader of missing rows connects.
    config = ReceiverConfig(
        chain_id=1, gap_databases=(database,), kafka="k:1", checkpoint="reported"
    )
    async with open_receiver(config):
        pass


async def _verify(database: Reached) -> None:
    request = VerifyRequest(chain_id=1, sources=(DatabaseSource(database=database),))
    await asyncio.to_thread(verify_locally, request)


async def _read_marks(database: Reached) -> None:
    await asyncio.to_thread(read_standing, database, 1)


PARTS: dict[str, Callable[[Reached], Awaitable[None]]] = {
    "sequencer": _sequence,
    "receiver": _receive,
    "fill": _fill,
    "verifier": _verify,
    "marks": _read_marks,
}
