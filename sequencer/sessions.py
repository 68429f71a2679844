"""How the sequencer's sessions with its database are set up, whatever a DBA has set there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orderchain.clients.database_config import DatabaseConfig
from orderchain.clients.session import Session, SessionConfig
from orderchain.roles import SEQUENCER_WRITER
from orderchain.sql import load_sql

if TYPE_CHECKING:
    from orderchain.clients.postgres import Connection
    from sequencer.config import SequencerConfig

_SQL: Final = load_sql("sequencer", "queries.sql")

_PINNED: Final = {
    "jit": "off",
    # Deadlines are ours: what the server ends by its own costs an epoch, or an answer.
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_session_timeout": "0",
    # One that stops in mid transaction must not hold a row for ever.
    "idle_in_transaction_session_timeout": "60s",
    # What the statements and their literals are written for.
    "client_encoding": "UTF8",
    "standard_conforming_strings": "on",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
    # The word that a standby was not waited for is a mere warning.
    "client_min_messages": "warning",
}
"""Settings of every session, whatever a DBA set for the server, the database or the role."""


def session_config(config: SequencerConfig, purpose: str, **settings: str) -> SessionConfig:
    """Return how a direct session of a sequencer is held, with settings of its own.

    What it does ends within the deadline of a commit, its connection included.
    """
    return SessionConfig(
        database=DatabaseConfig.of(config.database),
        application_name=f"orderchain {purpose} {config.chain_id}",
        role=SEQUENCER_WRITER,
        settings={**_PINNED, **settings},
        pooler="refused",
        connect_seconds=config.connect_seconds,
        statement_seconds=config.commit_seconds,
        call_seconds=config.commit_seconds,
    )


def side_session(config: SequencerConfig, purpose: str, **settings: str) -> Session:
    """Return a session beside the one that commits."""
    return Session(session_config(config, purpose, **settings), prepare=pin)


async def pin(connection: Connection) -> None:
    """Pin what not every version of the server knows, and so cannot be asked for at the connect."""
    await connection.execute(_SQL["pin_newer"])
