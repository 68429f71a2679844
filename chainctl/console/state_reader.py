"""Reads the console's state, by the statements of the reading commands, over one connection."""

from __future__ import annotations

import asyncio
import html
import re
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from msgspec import Struct

from chain_kernel.clients.database_config import DatabaseConfig
from chain_kernel.clients.postgres import require_sight
from chain_kernel.clients.postgres_errors import SERVER_ERRORS, statement_refusal
from chain_kernel.clients.session import Session, SessionConfig
from chain_kernel.errors import OrderchainError, RefusedError
from chain_kernel.files import open_regular
from chain_kernel.sql import AUDITOR
from chain_verifier.verified_mark import extent_of
from chainctl.console.state import Look, OutboxLine, Overview, ReportFile, VerifiedLine
from chainctl.database import SQL, database_id, require_server, utc
from chainctl.locks import naming_lock_holders
from chainctl.schema.parts import has_part
from chainctl.views import (
    ActLine,
    ChainLine,
    GapLine,
    ReceiverLine,
    ShadowLine,
    lines_of,
    read_chains,
    read_receivers,
    read_shadows,
)
from outbox import acts
from outbox.roles import OUTBOX_OPERATOR
from outbox.session import tables_of_part

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from chainctl.database import Connection
    from chainctl.settings import Settings

_T = TypeVar("_T")

READ_SECONDS: Final = 20.0
"""Deadline of one look at everything."""

PART_SHARE: Final = 1 / 3
"""The share of it that one part may take, beside the chains. More than the time after which the
holder of a lock is named."""

LINGER_SECONDS: Final = 60.0
"""Without a viewer, no connection is kept for longer than this."""

LEDGER_SECONDS: Final = 3.0
OUTBOX_SECONDS: Final = 5.0
VERIFIED_SECONDS: Final = 30.0
"""Pauses between two reads of the parts that move slowly: counting deliveries reads all of them,
and every verified mark is held against its batch."""

OVERDUE_SECONDS: Final = 60.0
"""The default of `chainctl outbox status`."""

SHARE: Final = 9
"""Poll each part at most 10 % of the time: a read is followed by nine times its length of rest."""

GAPS_SHOWN: Final = 200
ACTS_SHOWN: Final = 50
"""Rows of a list: a screen or four. The commands show all of them."""

_HEAD_BYTES: Final = 8_192
"""The title of a report is within these: its style sheet comes after it."""

_TITLE: Final = re.compile(r"<title>([^<]{1,300})</title>")
_CLEAN: Final = re.compile(r'<meta name="orderchain-clean" content="(yes|no)">')


class Chains(Struct, frozen=True, kw_only=True):
    """The part of a look that is read each time: chains and receivers of one snapshot."""

    read_at: datetime
    database_id: str
    look: Look
    chains: tuple[ChainLine, ...]
    paces: dict[int, float]
    receivers: tuple[ReceiverLine, ...]
    shadows: tuple[ShadowLine, ...]


class Ledger(Struct, frozen=True):
    """The gap ledger and the acts."""

    gaps: tuple[GapLine, ...] = ()
    acts: tuple[ActLine, ...] = ()


class _Part(Generic[_T]):
    """One part of the state: read when it is due, else as it was."""

    def __init__(
        self, value: _T, read: Callable[[Connection], Awaitable[_T]], seconds: float, role: str
    ) -> None:
        self.value = value
        self.refusal: OrderchainError | None = None
        """Why it is not read: this login may not, it is not there, or it gave no answer."""
        self.role = role
        self._read = read
        self._seconds = seconds
        self.due = 0.0

    async def look(
        self, connection: Connection, config: SessionConfig, within_seconds: float | None = None
    ) -> None:
        """Read it if it is due. Raises what says that the database is away.

        With `within_seconds`, one that gives no answer stays as it was: it is not the database.
        """
        began = time.monotonic()
        if began < self.due:
            return
        try:
            async with (
                asyncio.timeout(within_seconds),
                naming_lock_holders(config, connection),
                connection.transaction(isolation="repeatable_read", readonly=True),
            ):
                self.value = await self._read(connection)
        except (OrderchainError, *SERVER_ERRORS) as error:
            refusal = statement_refusal(error, config.database, self.role)
            may_stay = within_seconds is not None and not connection.is_closed()
            expected = OrderchainError if may_stay else RefusedError
            if not isinstance(refusal, expected):
                raise
            self.refusal = refusal
        else:
            self.refusal = None
        ended = time.monotonic()
        self.due = ended + max(self._seconds, SHARE * (ended - began))


class StateReader:
    """Reads snapshots of one database, for one caller at a time."""

    def __init__(self, settings: Settings, report: Path | None) -> None:
        """`report` is where `chainctl verify --report` writes its page, if it is known."""
        self._report = report
        self._config = SessionConfig(
            database=DatabaseConfig.of(settings.database_dsn()),
            application_name="chainctl console",
            role=AUDITOR,
            connect_seconds=settings.connect_seconds,
            statement_seconds=READ_SECONDS,
            linger_seconds=LINGER_SECONDS,
        )
        self._session = Session(self._config, prepare=require_server)
        self._chains = _Part[Chains | None](None, self._read_chains, 0.0, AUDITOR)
        self._ledger = _Part(Ledger(), _read_ledger, LEDGER_SECONDS, AUDITOR)
        self._verified = _Part[tuple[VerifiedLine, ...]](
            (), self._read_verified, VERIFIED_SECONDS, AUDITOR
        )
        self._outbox = _Part[tuple[OutboxLine, ...] | None](
            None, _read_outbox, OUTBOX_SECONDS, OUTBOX_OPERATOR
        )
        self._inboxes = _Part[tuple[acts.InboxCount, ...] | None](
            None, _read_inboxes, OUTBOX_SECONDS, OUTBOX_OPERATOR
        )

    async def read(self) -> Overview:
        """Return the state.

        Raises RetryError where the database is away, ConnectError where it refuses; and what keeps
        the chains from being read where the database has no outbox and no inbox either.
        """
        await self._session.run(self._look_at_parts)
        has_messages = (self._outbox.value, self._inboxes.value) != (None, None)
        if self._chains.refusal is not None and not has_messages:
            raise self._chains.refusal
        return self._snapshot()

    async def close(self) -> None:
        """Close the connection; never raises."""
        await self._session.close()

    async def _look_at_parts(self, connection: Connection) -> None:
        await self._chains.look(connection, self._config)
        others: list[_Part[Any]] = [self._outbox, self._inboxes]
        if self._chains.refusal is None:
            others = [self._ledger, self._verified, *others]
        for part in others:
            await part.look(connection, self._config, READ_SECONDS * PART_SHARE)

    def _snapshot(self) -> Overview:
        parts = {
            "chains": self._chains.refusal,
            "gaps": self._ledger.refusal,
            "outbox": self._outbox.refusal,
            "inboxes": self._inboxes.refusal,
            "verified": self._verified.refusal,
        }
        absent = {name: str(refusal) for name, refusal in parts.items() if refusal is not None}
        if self._outbox.value is None and "outbox" not in absent:
            absent["outbox"] = "this database has no outbox"
        chains = None if "chains" in absent else self._chains.value
        return Overview(
            read_at=utc(datetime.now(UTC) if chains is None else chains.read_at),
            database_id="" if chains is None else chains.database_id,
            chains=() if chains is None else chains.chains,
            paces={} if chains is None else chains.paces,
            receivers=() if chains is None else chains.receivers,
            shadows=() if chains is None else chains.shadows,
            gaps=self._ledger.value.gaps,
            acts=self._ledger.value.acts,
            outbox=self._outbox.value or (),
            inboxes=self._inboxes.value or (),
            verified=self._verified.value,
            report=None if self._report is None else report_file(self._report),
            absent=absent,
        )

    async def _read_chains(self, connection: Connection) -> Chains:
        at = await connection.fetchval(SQL["clock"])
        identity = await database_id(connection)
        chains = await read_chains(connection, None)
        look = Look(at, {line.chain: line.head_persisted for line in chains})
        return Chains(
            read_at=datetime.fromtimestamp(at, UTC),
            database_id=str(identity),
            look=look,
            chains=tuple(chains),
            paces=await self._paces(connection, look),
            receivers=tuple(await read_receivers(connection, None)),
            shadows=tuple(await read_shadows(connection, None)),
        )

    async def _paces(self, connection: Connection, look: Look) -> dict[int, float]:
        """Return orders per second by chain, since the look before this one."""
        if self._chains.value is None:
            return {}
        before = self._chains.value.look
        moved = before.moved(look)
        rows = {}
        if moved:
            given = (list(moved), list(moved.values()))
            counted = await connection.fetch(SQL["rows_after"], *given)
            rows = {row["chain_id"]: row["rows"] for row in counted}
        return before.paces(look, rows)

    async def _read_verified(self, connection: Connection) -> tuple[VerifiedLine, ...]:
        chains = self._chains.value.chains if self._chains.value is not None else ()
        lines = []
        for chain in chains:
            extent = await extent_of(connection, chain.chain)
            mark, contradicted = extent.mark, extent.contradicted
            line = VerifiedLine(
                chain=chain.chain,
                until_id=mark.until_id if mark else None,
                verified_by=mark.verified_by if mark else None,
                verified_at=utc(mark.verified_at) if mark else None,
                contradicted_id=contradicted.until_id if contradicted else None,
                contradicted=contradicted.count if contradicted else 0,
            )
            lines.append(line)
        return tuple(lines)


async def _read_ledger(connection: Connection) -> Ledger:
    filters = (None, None)
    rows = {
        (row["chain"], row["receiver"], row["after_id"]): row
        for is_open in (False, True)
        for row in await connection.fetch(SQL["gaps"], *filters, is_open, None, GAPS_SHOWN)
    }
    found = await connection.fetch(SQL["acts"], None, None, ACTS_SHOWN)
    return Ledger(tuple(lines_of(GapLine, [*rows.values()])), tuple(lines_of(ActLine, found)))


async def _read_outbox(connection: Connection) -> tuple[OutboxLine, ...] | None:
    if not await has_part(connection, "outbox"):
        return None
    await require_sight(connection, tables_of_part("outbox"))
    counts = await acts.read_counts(connection, OVERDUE_SECONDS)
    return tuple(OutboxLine(**row) for row in counts)


async def _read_inboxes(connection: Connection) -> tuple[acts.InboxCount, ...] | None:
    if not await has_part(connection, "inbox"):
        return None
    await require_sight(connection, tables_of_part("inbox"))
    return tuple(await acts.DeadLetters(connection).inboxes())


def report_file(path: Path) -> ReportFile | None:
    """Return what is known of a report; None where there is no page that can be read."""
    try:
        with open_regular(path) as file:
            head = file.read(_HEAD_BYTES).decode("utf-8", "replace")
        written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except OSError:
        return None
    found, clean = _TITLE.search(head), _CLEAN.search(head)
    if found is None:
        return None
    is_clean = None if clean is None else clean[1] == "yes"
    return ReportFile(title=html.unescape(found[1]), written=utc(written), is_clean=is_clean)
