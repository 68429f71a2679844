"""Rows of chains, their receivers and acts as they are shown, in tables, JSON and the console.

The statements give the columns by these names.

Times are texts of the database's clock, so ages never depend on the clock of this machine.
"""

from __future__ import annotations

import base64
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import Struct
from msgspec.structs import asdict

from chain_kernel.monitoring import LAG_LIMITS
from chain_kernel.text import counted, printable
from chainctl.database import SQL, utc
from chainctl.output import data_json, table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chainctl.database import Connection

_Line = TypeVar("_Line", bound=Struct)

AGREEING: Final = {"yes", "archived", "-"}
"""Answers about a checkpoint that are no contradiction."""

_PAYLOAD_CHARACTERS: Final = 60
"""Characters of a payload in a table; JSON has all of it."""


class ChainLine(Struct, frozen=True, kw_only=True):
    """One chain with its heads and its leader."""

    chain: int
    epoch: int
    leader: str | None
    leader_state: str
    """`leads`, `steps down`, `silent`, `handed over` or `never led`."""
    leader_since: str | None
    last_beat_seconds: float | None
    lease_seconds: float | None
    backend: int | None
    head_persisted: int
    head_published: int
    unpublished_ids: int
    unpublished_rows: int
    unpublished_seconds: float
    last_commit: str | None
    is_published: bool
    """True if its leader has a broker; otherwise receivers are notified through the database."""
    topic: str
    partition_ids: int
    created: str

    @property
    def is_led(self) -> bool:
        """True if a process leads it."""
        return self.leader_state in ("leads", "steps down")

    @property
    def is_late(self) -> bool:
        """True if committed orders wait too long to be published."""
        return LAG_LIMITS.are_exceeded(self.unpublished_ids, self.unpublished_seconds)

    @property
    def published(self) -> str:
        """`everything`, or in words how late, and for what it waits."""
        if not self.is_published:
            return "no broker: receivers are notified"
        rows = self.unpublished_rows
        if not rows:
            return "everything"
        wait = f"{counted(rows, 'row')} {'waits' if rows == 1 else 'wait'}"
        by = "the broker" if self.is_led else "a leader"
        return f"{self.unpublished_seconds:.1f} s late: {wait} for {by}"

    @property
    def leader_life(self) -> str:
        """The state of the leader, and its last beat, in words."""
        beat = self.last_beat_seconds
        if beat is None or not (self.is_led or self.leader_state == "silent"):
            return self.leader_state
        return f"{self.leader_state}, last beat {beat:.1f} s ago"


class ReceiverLine(Struct, frozen=True, kw_only=True):
    """One receiver that keeps its checkpoint in the database, or reports to it."""

    chain: int
    receiver: str
    checkpoint: str
    """`stored`, `reported` or `none`."""
    head_delivered: int
    """Its checkpoint: it does not include what was handed on since."""
    behind_ids: int
    behind_rows: int
    """Rows of the batches after its checkpoint; a batch that it has begun counts whole."""
    behind_seconds: float
    """Age of the first batch that its checkpoint does not cover, by the database's clock; 0 when
    all are covered."""
    updated: str
    agrees: str
    """`yes`, or how the database contradicts the checkpoint; `-` without one."""
    halted: str
    """Why it has halted; empty while it has not."""
    halt_detail: str

    @property
    def state(self) -> str:
        """`halted`, `contradicted`, `late` or `keeps up`."""
        if self.halted:
            return "halted"
        if self.agrees not in AGREEING:
            return "contradicted"
        is_late = LAG_LIMITS.are_exceeded(self.behind_ids, self.behind_seconds)
        return "late" if is_late else "keeps up"


class ShadowLine(Struct, frozen=True, kw_only=True):
    """One shadow, and how its states compare with those of the receiver that it follows."""

    chain: int
    receiver: str
    """The shadow."""
    shadow_of: str
    compared: int
    """States compared since its start."""
    compared_id: int
    """The last order after which some were."""
    groups: int
    """Groups whose states differ."""
    differs_group: str | None
    """The group that differed first; None while none does."""
    differs_id: int | None
    """The first order after which it differed."""
    equal_id: int | None
    """The last order after which it was equal; 0 for none."""
    stored_digest: str | None
    found_digest: str | None
    """Digests of its state there, in hexadecimal: the receiver's, and the shadow's."""
    updated: str

    @property
    def result(self) -> str:
        """`equal`, `nothing compared`, or in words where it differs first."""
        if self.differs_id is None:
            return "equal" if self.compared else "nothing compared"
        whose = f"in {self.differs_group!r} " if self.differs_group else ""
        more = f"; {counted(self.groups, 'group')} in all" if self.groups > 1 else ""
        since = f"equal up to {self.equal_id}" if self.equal_id else "never equal"
        return f"differs {whose}after id {self.differs_id}, {since}{more}"


class GapLine(Struct, frozen=True, kw_only=True):
    """One entry of the gap ledger."""

    chain: int
    receiver: str
    after_id: int
    """The last row before it; exclusive."""
    until_id: int
    """The last row of it; inclusive."""
    rows: int
    cause: str
    source: str
    outcome: str
    """`filled`; `open`; or why it is neither: `missing`, `archived`, `not yet readable`,
    `interrupted`."""
    found: str
    seconds: float


class ActLine(Struct, frozen=True, kw_only=True):
    """A change by hand."""

    act_id: int
    chain: int
    acted_at: str
    act: str
    receiver: str | None
    actor: str
    login: str
    reason: str
    detail: str


async def read_chains(connection: Connection, chain_id: int | None) -> list[ChainLine]:
    """Return a chain, or all."""
    return lines_of(ChainLine, await connection.fetch(SQL["chain_status"], chain_id))


async def read_receivers(
    connection: Connection, chain_id: int | None, name: str | None = None
) -> list[ReceiverLine]:
    """Return the receivers of a chain, or of all; the one of that `name` alone if it is given."""
    return lines_of(ReceiverLine, await connection.fetch(SQL["lag"], chain_id, name))


async def read_shadows(connection: Connection, chain_id: int | None) -> list[ShadowLine]:
    """Return the shadows of a chain, or of all."""
    return lines_of(ShadowLine, await connection.fetch(SQL["shadows"], chain_id))


def lines_of(kind: type[_Line], rows: Sequence[Mapping[str, Any]]) -> list[_Line]:
    """Return rows of a statement that has the columns of `kind`."""
    return [kind(**plain(row)) for row in rows]


def plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with times as texts and spans in seconds."""
    return {name: _plain(value) for name, value in row.items()}


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return utc(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    return round(value, 3) if isinstance(value, float) else value


def write(
    columns: Sequence[str], lines: Sequence[Struct | Mapping[str, Any]], *, as_json: bool = False
) -> None:
    """Write lines as JSON, with all their fields, or as a table of `columns`."""
    if as_json:
        data_json(lines)
        return
    fields = [asdict(line) if isinstance(line, Struct) else line for line in lines]
    table(columns, [tuple(_cell(each[column]) for column in columns) for each in fields])


def write_facts(facts: Struct | Mapping[str, Any]) -> None:
    """Write one thing as a table of its fields."""
    found = asdict(facts) if isinstance(facts, Struct) else facts
    table(("what", "value"), [(name, _cell(value)) for name, value in found.items()])


def _cell(value: object) -> object:
    """Return a payload as it fits a table: as text, where it is text."""
    if not isinstance(value, bytes):
        return value
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = base64.b64encode(value).decode()
    return printable(text, _PAYLOAD_CHARACTERS)
