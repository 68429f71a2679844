"""What is shown of chains, their receivers and acts: each row once, for tables, JSON, the console
and what it warns of.

Times are texts of the database's clock, so ages never depend on the clock of this machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self

from msgspec import Struct
from msgspec.structs import asdict

from chain_kernel.monitoring import LAG_LIMITS
from chain_kernel.text import counted
from chainctl.database import SQL, utc
from chainctl.output import data_json, table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from chainctl.database import Connection

AGREEING: Final = {"yes", "archived"}
"""Standings of a checkpoint that are no contradiction."""


class ChainLine(Struct, frozen=True, kw_only=True):
    """One chain with its heads and its leader."""

    chain: int
    epoch: int
    leader: str | None
    leader_state: str
    """`leads`, `steps down`, `silent`, `handed over` or `never led`."""
    leader_life: str
    leader_since: str | None
    last_beat_seconds: float | None
    lease_seconds: float | None
    backend: int | None
    head_persisted: int
    head_published: int
    unpublished_ids: int
    unpublished_rows: int
    unpublished_seconds: float
    published: str
    """`everything`, or how late, in words."""
    last_commit: str | None
    topic: str
    partition_ids: int
    created: str

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """Return a row of the statement `chain_status` as it is shown."""
        beat = row["beat_age_seconds"]
        return cls(
            chain=row["chain_id"],
            epoch=row["epoch"],
            leader=row["owner"] or None,
            leader_state=leader_state(row),
            leader_life=leader_life(row),
            leader_since=_time_or_none(row["leader_since"]),
            last_beat_seconds=None if beat is None else round(beat, 3),
            lease_seconds=row["lease_seconds"],
            backend=row["backend_pid"] if row["has_backend"] else None,
            head_persisted=row["last_id"],
            head_published=row["published_id"],
            unpublished_ids=row["last_id"] - row["published_id"],
            unpublished_rows=row["unpublished_rows"],
            unpublished_seconds=round(row["unpublished_seconds"], 3),
            published=published_life(row),
            last_commit=utc(row["committed_at"]) if row["last_id"] else None,
            topic=row["topic"],
            partition_ids=row["partition_ids"],
            created=utc(row["created_at"]),
        )

    @property
    def is_led(self) -> bool:
        """Whether a process leads it."""
        return self.leader_state in ("leads", "steps down")

    @property
    def is_late(self) -> bool:
        """Whether what is committed waits too long to be published."""
        return LAG_LIMITS.are_exceeded(self.unpublished_ids, self.unpublished_seconds)


def leader_state(chain: Mapping[str, Any]) -> str:
    """Return how alive the leader is: `leads`, `steps down`, `silent`, `handed over`, `never led`.

    It is silent once its last beat is older than its lease: then a standby takes over, if there is
    one. Both times are the database's, so a client's clock does not matter.
    """
    if chain["epoch"] == 0:
        return "never led"
    if chain["released"]:
        return "handed over"
    beat, lease = chain["beat_age_seconds"], chain["lease_seconds"]
    if beat is None or lease is None or beat > lease:
        return "silent"
    return "steps down" if chain["step_down"] else "leads"


def leader_life(chain: Mapping[str, Any]) -> str:
    """Return the state of the leader in words: since when it leads, or has been silent."""
    state, beat = leader_state(chain), chain["beat_age_seconds"]
    if state == "silent":
        return "silent" if beat is None else f"silent for {beat:.1f} s"
    if state not in ("leads", "steps down"):
        return state
    since = f" since {utc(chain['leader_since'])}" if chain["leader_since"] else ""
    asked = ", asked to step down" if state == "steps down" else ""
    return f"leads{since}, last beat {beat:.1f} s ago{asked}"


def published_life(chain: Mapping[str, Any]) -> str:
    """Return in words whether everything is published, or how late it is and for what it waits."""
    rows = chain["unpublished_rows"]
    if not rows:
        return "everything"
    waits_for = "the broker" if leader_state(chain) in ("leads", "steps down") else "a leader"
    verb = "waits" if rows == 1 else "wait"
    return (
        f"{chain['unpublished_seconds']:.1f} s late: {counted(rows, 'row')} {verb} for {waits_for}"
    )


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
        """How it is: `halted`, `contradicted`, `late` or `keeps up`."""
        if self.halted:
            return "halted"
        if self.agrees not in AGREEING | {"-"}:
            return "contradicted"
        is_late = LAG_LIMITS.are_exceeded(self.behind_ids, self.behind_seconds)
        return "late" if is_late else "keeps up"


async def read_receivers(
    connection: Connection, chain_id: int | None, name: str | None = None
) -> list[ReceiverLine]:
    """Return the receivers of a chain, or of all; the one of that `name` alone if it is given."""
    agreements = await read_agreements(connection, chain_id)
    return [
        ReceiverLine(
            chain=row["chain_id"],
            receiver=row["receiver"],
            checkpoint=row["checkpoint"],
            head_delivered=row["head_delivered"],
            behind_ids=row["behind_ids"],
            behind_rows=row["behind_rows"],
            behind_seconds=round(row["behind_seconds"], 3),
            updated=utc(row["updated_at"]),
            agrees=agreements.get((row["chain_id"], row["receiver"]), "-"),
            halted=row["halted"],
            halt_detail=row["halt_detail"],
        )
        for row in await connection.fetch(SQL["lag"], chain_id, name)
    ]


async def read_agreements(
    connection: Connection, chain_id: int | None
) -> dict[tuple[int, str], str]:
    """Return, by chain and receiver, `yes` or how the database contradicts the checkpoint.

    A receiver without a checkpoint is left out.
    """
    rows = await connection.fetch(SQL["checkpoints_and_batches"], chain_id)
    return {(row["chain_id"], row["receiver"]): _agreement(row) for row in rows}


def _agreement(row: Mapping[str, Any]) -> str:
    if row["batch_last_id"] > row["head"]:
        return "ahead of the head"
    if row["stored_seal"] is None:
        return "archived" if row["batch_last_id"] < row["boundary"] else "no such batch"
    return "yes" if row["stored_seal"] == row["seal"] else "another seal"


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

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """Return a row of the statement `gaps` as it is shown."""
        return cls(
            chain=row["chain_id"],
            receiver=row["receiver"],
            after_id=row["after_id"],
            until_id=row["until_id"],
            rows=row["row_count"],
            cause=row["cause"],
            source=row["source"],
            outcome=row["outcome"],
            found=utc(row["found_at"]),
            seconds=round(row["duration"].total_seconds(), 6),
        )


class GapSum(Struct, frozen=True, kw_only=True):
    """The gaps of one receiver that have the same cause and outcome."""

    receiver: str
    cause: str
    outcome: str
    gaps: int
    rows: int
    seconds: float
    """How long their fills took together."""
    last_found: str

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """Return a row of the statement `gap_sums` as it is shown."""
        summed = {**row, "seconds": round(row["seconds"], 6), "last_found": utc(row["last_found"])}
        return cls(**summed)


class ActLine(Struct, frozen=True, kw_only=True):
    """What somebody did by hand."""

    act_id: int
    chain: int
    acted_at: str
    act: str
    receiver: str | None
    actor: str
    login: str
    reason: str
    detail: str

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """Return a row of the statement `acts` as it is shown."""
        plain = {name: value for name, value in row.items() if name != "chain_id"}
        return cls(**{**plain, "chain": row["chain_id"], "acted_at": utc(row["acted_at"])})


def picked(line: Struct, columns: Sequence[str]) -> dict[str, Any]:
    """Return these fields of a line, by name."""
    return {column: getattr(line, column) for column in columns}


def write_table(columns: Sequence[str], lines: Sequence[Struct]) -> None:
    """Write these fields of the lines as a table."""
    table(columns, [tuple(picked(line, columns).values()) for line in lines])


def write(columns: Sequence[str], lines: Sequence[Struct], *, as_json: bool) -> None:
    """Write lines as JSON, with all their fields, or as a table of `columns`."""
    if as_json:
        data_json(lines)
    else:
        write_table(columns, lines)


def write_facts(facts: Struct | Mapping[str, Any]) -> None:
    """Write one thing as a table of its fields."""
    found = asdict(facts) if isinstance(facts, Struct) else facts
    table(("what", "value"), list(found.items()))


def _time_or_none(time: datetime | None) -> str | None:
    return utc(time) if time else None
