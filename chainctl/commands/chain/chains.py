"""`chainctl chain`: makes chains with their topics, and lists them. Nothing else ever makes one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from chain_kernel.sql import OWNER
from chainctl.admin import PARTITION_IDS, PARTITION_IDS_MAX, create_chain
from chainctl.commands.verifier.verify_mark import verify_mark
from chainctl.database import connected_to, looked
from chainctl.event_loop import run_async
from chainctl.options import CHAIN_ID, Group, json_option, uses_settings
from chainctl.output import data_json, talk
from chainctl.topics import check_topic_name
from chainctl.units import Integer
from chainctl.views import read_chains, write

if TYPE_CHECKING:
    from chainctl.admin import ChainCreation
    from chainctl.settings import Settings


_LISTED: Final = ("chain", "epoch", "head_persisted", "head_published", "topic", "created")


@click.group(cls=Group)
def chain() -> None:
    """Chains: each one ordered stream, with a topic of its own."""


chain.add_command(verify_mark, "verify-mark")


@chain.command()
@click.argument("chain_id", metavar="N", type=CHAIN_ID)
@click.option("--topic", metavar="TOPIC", help="Its topic.  [default: orderchain.N]")
@click.option(
    "--partition-ids",
    type=Integer(1, PARTITION_IDS_MAX),
    metavar="COUNT",
    help=f"Ids that one partition of the table spans.  [default: {PARTITION_IDS}]",
)
@json_option
@uses_settings("database", "kafka", "connect_seconds")
def create(
    settings: Settings, chain_id: int, topic: str | None, partition_ids: int | None, as_json: bool
) -> None:
    """Make the chain N with its topic; what is there already is left as it is.

    Without --kafka it makes no topic: the chain is led without a broker, or until one is added.
    """
    if topic is not None:
        check_topic_name(topic, "--topic")
    done = run_async(_create(settings, chain_id, topic, partition_ids))
    chain = "created" if done.chain_created else "is there already"
    topic_state = "created" if done.topic_created else "is there already"
    if not settings.kafka:
        topic_state = "not looked at: no broker is set"
    talk(f"chainctl: chain {done.chain} {chain}, topic {done.topic} {topic_state}")
    if as_json:
        data_json(done)


@chain.command("list")
@json_option
@uses_settings("database", "connect_seconds")
def list_(settings: Settings, as_json: bool) -> None:
    """List the chains and their heads."""
    lines = run_async(looked(settings, None, lambda connection: read_chains(connection, None)))
    write(_LISTED, lines, as_json=as_json)


async def _create(
    settings: Settings, chain_id: int, topic: str | None, partition_ids: int | None
) -> ChainCreation:
    database, seconds = settings.database_dsn(), settings.connect_seconds
    async with connected_to(database, seconds, OWNER) as connection:
        return await create_chain(
            connection,
            settings.broker(),
            chain_id,
            topic=topic,
            partition_ids=partition_ids,
            connect_seconds=seconds,
        )
