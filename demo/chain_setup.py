"""Where a demo takes place: a chain of its own on the local stack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from chainctl.commands.chain.chains import ChainPlan, create_chain
from chainctl.commands.schema import apply_schema
from chainctl.database import connected
from chainctl.settings import Settings
from demo.state_store import SQL
from orderchain.errors import OrderchainError
from orderchain.roles import AUDITOR, GAP_READER, OWNER, RECEIVER_WRITER, SEQUENCER_WRITER

if TYPE_CHECKING:
    from chainctl.commands.chain.chains import Creation
    from local_stack import LocalStack


CHAIN_TRIES: Final = 10
"""How many numbers to try when somebody else takes each one at the same moment."""


class Stage(Struct, frozen=True, kw_only=True):
    """A fresh chain, and how each part of the demo reaches it, with no more rights than needed."""

    chain_id: int
    topic: str
    kafka: str
    sequencer_database: str
    receiver_database: str
    gap_database: str
    audit_database: str

    def __repr__(self) -> str:
        """Show the chain alone: the addresses hold passwords."""
        return f"Stage(chain_id={self.chain_id})"


async def set_stage(stack: LocalStack) -> Stage:
    """Apply the schema where it is missing, and make a chain and the demo's own table.

    Raises SchemaError when there is a schema of another version.
    """
    environment = stack.environment()
    settings = Settings(
        database=environment["CHAINCTL_DATABASE"], kafka=environment["CHAINCTL_KAFKA"]
    )
    await apply_schema(settings)
    await make_table(settings)
    chain = await _new_chain(settings)
    return Stage(
        chain_id=chain.chain,
        topic=chain.topic,
        kafka=settings.kafka,
        sequencer_database=stack.dsn(SEQUENCER_WRITER),
        receiver_database=stack.dsn(RECEIVER_WRITER),
        gap_database=stack.dsn(GAP_READER),
        audit_database=stack.dsn(AUDITOR),
    )


async def make_table(settings: Settings) -> None:
    """Make the demo's own table where it is missing, as the role that `settings` log in as."""
    async with (
        connected(settings.database, settings.connect_seconds, OWNER) as connection,
        connection.transaction(),
    ):
        # IF NOT EXISTS alone does not keep two concurrent demos apart.
        await connection.execute(SQL["lock_table"])
        await connection.execute(SQL["create_table"])
        await connection.execute(SQL["grant_table"])


async def _new_chain(settings: Settings) -> Creation:
    """Make the chain with the next free number."""
    for _ in range(CHAIN_TRIES):
        async with connected(settings.database, settings.connect_seconds, OWNER) as connection:
            chain_id = await connection.fetchval(SQL["next_chain"])
        plan = ChainPlan(chain_id=chain_id, topic=None, partition_ids=None)
        chain = await create_chain(settings, plan)
        if chain.chain_created:
            return chain
    raise OrderchainError(f"somebody else took each of {CHAIN_TRIES} chain numbers in turn")
