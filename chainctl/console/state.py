"""The state that the console shows: a snapshot, its notices, and its changes since the last one.

Pure: rows in, values out. Times are texts of the database's clock, so ages never depend on the
clock of this machine or of a viewer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec import Struct
from msgspec.structs import asdict

from chain_kernel.text import counted
from chainctl.views import ActLine, ChainLine, GapLine, ReceiverLine, ShadowLine
from outbox.acts import InboxCount

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


Fields = dict[str, Any]
Document = dict[str, dict[str, Fields]]
"""A snapshot as it is sent: sections of rows, each row by its key, with its fields."""

RATE_SECONDS_MAX: Final = 30.0
"""A pace over a longer time than this shows nothing of now: the last look was too long ago."""


class OutboxLine(Struct, frozen=True, kw_only=True):
    """The deliveries of one status to one destination, as `chainctl outbox status` shows them."""

    destination: str | None
    """None for an error of all of them: no relay runs."""
    status: str | None
    deliveries: int
    oldest_seconds: float | None
    overdue: int | None
    """Those not sent though they fell due a minute ago; None of finished ones."""
    overdue_seconds: float | None
    trouble: str | None
    silent: str | None
    """The consumers of the destination of which nothing is heard, or None."""


class VerifiedLine(Struct, frozen=True, kw_only=True):
    """The last verified mark of a chain: up to there it was proven whole."""

    chain: int
    until_id: int | None
    """None while it was never verified."""
    verified_by: str | None
    verified_at: str | None
    contradicted_id: int | None
    """The first mark whose rows are no longer those that were verified; None if all hold."""
    contradicted: int
    """The number of marks that do not hold."""


class ReportFile(Struct, frozen=True, kw_only=True):
    """The page that `chainctl verify --report` wrote last."""

    title: str
    """Its title: the verdict."""
    written: str
    is_clean: bool | None
    """True if all was whole; None for a page that does not say it."""


class Overview(Struct, frozen=True, kw_only=True):
    """All that the console shows of a database."""

    read_at: str
    """The database's time of the look at chains and receivers; other parts may be older."""
    database_id: str
    chains: tuple[ChainLine, ...] = ()
    paces: dict[int, float] = {}
    """Orders per second by chain since the look before; none at the first."""
    receivers: tuple[ReceiverLine, ...] = ()
    shadows: tuple[ShadowLine, ...] = ()
    gaps: tuple[GapLine, ...] = ()
    """The last ones of all receivers, and the last ones that are not filled."""
    acts: tuple[ActLine, ...] = ()
    outbox: tuple[OutboxLine, ...] = ()
    inboxes: tuple[InboxCount, ...] = ()
    verified: tuple[VerifiedLine, ...] = ()
    report: ReportFile | None = None
    absent: dict[str, str] = {}
    """Parts that cannot be shown (`chains`, `outbox`, ...), and why."""


class Notice(Struct, frozen=True, kw_only=True):
    """One thing that needs a person, or may soon."""

    level: Literal["bad", "warn"]
    section: str
    """The part of the page that shows it: `chains`, `receivers`, `shadows`, `gaps`, `outbox`,
    `inboxes` or `verified`."""
    chain: int | None
    text: str
    """Without a time that runs on, where the state does not hold one."""


# -- what needs a person ---------------------------------------------------------------------------


def notices(snapshot: Overview) -> list[Notice]:
    """Return what needs a person, the worst first, then in the order of the chains."""
    found = [
        *_of_chains(snapshot.chains),
        *_of_receivers(snapshot.receivers),
        *_of_shadows(snapshot.shadows),
        *_of_gaps(snapshot),
        *_of_outbox(snapshot.outbox),
        *_of_inboxes(snapshot.inboxes),
        *_of_verification(snapshot),
    ]
    return sorted(found, key=lambda each: (each.level != "bad", each.chain or 0))


def _of_chains(chains: Iterable[ChainLine]) -> Iterator[Notice]:
    for line in chains:
        name = f"Chain {line.chain}"
        if line.leader_state == "silent":
            leader = f"its leader {line.leader}" if line.leader else "its leader"
            text = f"{name}: {leader} is silent. A standby takes over, if one runs."
            yield Notice(level="bad", section="chains", chain=line.chain, text=text)
        elif line.is_late:
            text = f"{name}: published {line.published}."
            yield Notice(level="warn", section="chains", chain=line.chain, text=text)


def _of_receivers(receivers: Iterable[ReceiverLine]) -> Iterator[Notice]:
    for line in receivers:
        name = f"Chain {line.chain}, receiver {line.receiver}"
        text = {
            "halted": f"{name}: it has halted ({line.halted}).",
            "contradicted": f"{name}: the database contradicts its checkpoint ({line.agrees}).",
            "late": f"{name}: it is too far behind.",
        }.get(line.state)
        if text is not None:
            level: Literal["bad", "warn"] = "warn" if line.state == "late" else "bad"
            yield Notice(level=level, section="receivers", chain=line.chain, text=text)


def _of_shadows(shadows: Iterable[ShadowLine]) -> Iterator[Notice]:
    for line in shadows:
        if line.groups:
            text = (
                f"Chain {line.chain}, shadow {line.receiver} of {line.shadow_of}: it {line.result}."
            )
            yield Notice(level="warn", section="shadows", chain=line.chain, text=text)


def _of_gaps(snapshot: Overview) -> Iterator[Notice]:
    for gap in blocking(snapshot):
        text = (
            f"Chain {gap.chain}, receiver {gap.receiver}: orders after {gap.after_id:,} up to "
            f"{gap.until_id:,} are not filled ({gap.outcome})."
        )
        level: Literal["bad", "warn"] = "bad" if gap.outcome == "missing" else "warn"
        yield Notice(level=level, section="gaps", chain=gap.chain, text=text)


def blocking(snapshot: Overview) -> list[GapLine]:
    """Return the gaps that their receivers have not passed yet.

    An entry that is not filled stays in the ledger when the receiver has got its orders later.
    """
    heads = {(line.chain, line.receiver): line.head_delivered for line in snapshot.receivers}
    return [
        gap
        for gap in snapshot.gaps
        if gap.outcome != "filled" and heads.get((gap.chain, gap.receiver), 0) < gap.until_id
    ]


def _of_outbox(outbox: Iterable[OutboxLine]) -> Iterator[Notice]:
    errors: dict[str | None, str] = {}
    silences: dict[str | None, str] = {}
    for line in outbox:
        if line.status == "abnormal":
            many = counted(line.deliveries, "delivery", "deliveries")
            verb = "is" if line.deliveries == 1 else "are"
            text = f"Outbox: {many} to {line.destination} {verb} abnormal."
            yield Notice(level="bad", section="outbox", chain=None, text=text)
        if line.overdue:
            many = counted(line.overdue, "delivery", "deliveries")
            text = f"Outbox: {many} to {line.destination} fell due and are not sent."
            yield Notice(level="warn", section="outbox", chain=None, text=text)
        if line.trouble:
            errors[line.destination] = line.trouble
        if line.silent:
            silences[line.destination] = line.silent
    for destination, error in errors.items():
        of = "" if destination is None else f", destination {destination}"
        text = f"Outbox{of}: {error}."
        yield Notice(level="bad", section="outbox", chain=None, text=text)
    for destination, silent in silences.items():
        text = f"Outbox, destination {destination}: {silent}."
        yield Notice(level="warn", section="outbox", chain=None, text=text)


def _of_inboxes(inboxes: Iterable[InboxCount]) -> Iterator[Notice]:
    for line in inboxes:
        if line.dead:
            are = "It is a dead letter" if line.dead == 1 else "They are dead letters"
            many = counted(line.dead, "message")
            text = f"Consumer {line.consumer}: it has given up {many}. {are}."
            yield Notice(level="bad", section="inboxes", chain=None, text=text)


def _of_verification(snapshot: Overview) -> Iterator[Notice]:
    report = snapshot.report
    if report is not None and report.is_clean is False:
        text = f"The last verification is not clean. {report.title}: see its report."
        yield Notice(level="bad", section="verified", chain=None, text=text)
    for line in snapshot.verified:
        if line.contradicted_id is not None:
            text = (
                f"Chain {line.chain}: rows up to {line.contradicted_id:,} are not those that were "
                "verified."
            )
            yield Notice(level="bad", section="verified", chain=line.chain, text=text)


# -- how fast --------------------------------------------------------------------------------------


class Look(Struct, frozen=True):
    """The heads of a look, to compute the pace of the chains."""

    at: float
    """The database's time, in seconds."""
    heads: dict[int, int]
    """head_persisted by chain."""

    def moved(self, later: Look) -> dict[int, int]:
        """Return the heads of this look of those chains that have grown since, by chain.

        None of them where the looks lie too far apart for a pace.
        """
        if not 0 < later.at - self.at <= RATE_SECONDS_MAX:
            return {}
        return {
            chain: head for chain, head in self.heads.items() if later.heads.get(chain, 0) > head
        }

    def paces(self, later: Look, rows: Mapping[int, int]) -> dict[int, float]:
        """Return orders per second by chain; `rows` are the orders of those that have grown."""
        seconds = later.at - self.at
        if not 0 < seconds <= RATE_SECONDS_MAX:
            return {}
        return {
            chain: round(rows.get(chain, 0) / seconds, 1)
            for chain in later.heads
            if chain in self.heads
        }


# -- as it is sent ---------------------------------------------------------------------------------


def document(snapshot: Overview) -> Document:
    """Return a snapshot as it is sent."""
    blocked = set(blocking(snapshot))
    return {
        "chains": {
            str(line.chain): {
                **asdict(line),
                "orders_per_second": snapshot.paces.get(line.chain),
            }
            for line in snapshot.chains
        },
        "receivers": {
            f"{line.chain}/{line.receiver}": {**asdict(line), "state": line.state}
            for line in snapshot.receivers
        },
        "shadows": {
            f"{line.chain}/{line.receiver}": {**asdict(line), "result": line.result}
            for line in snapshot.shadows
        },
        "gaps": {
            f"{gap.chain}/{gap.receiver}/{gap.after_id}": {
                **asdict(gap),
                "blocks": gap in blocked,
            }
            for gap in snapshot.gaps
        },
        "acts": {str(act.act_id): asdict(act) for act in snapshot.acts},
        "outbox": {
            f"{line.destination or ''}/{line.status}": asdict(line) for line in snapshot.outbox
        },
        "inboxes": {line.consumer: asdict(line) for line in snapshot.inboxes},
        "verified": {str(line.chain): asdict(line) for line in snapshot.verified},
        "report": {"last": asdict(snapshot.report)} if snapshot.report else {},
        "absent": {part: {"why": why} for part, why in snapshot.absent.items()},
        "notices": {f"{number:04}": asdict(each) for number, each in enumerate(notices(snapshot))},
        "about": {"database": {"id": snapshot.database_id, "read_at": snapshot.read_at}},
    }


Changes = dict[str, dict[str, Fields | None]]
"""By section and key: the changed fields of a row, all of a new row, None for one that is gone."""


def changes(before: Document, after: Document) -> Changes:
    """Return what turns `before` into `after`; sections without a change are left out."""
    found = {name: _changed(before.get(name, {}), rows) for name, rows in after.items()}
    return {name: rows for name, rows in found.items() if rows}


def _changed(before: Mapping[str, Fields], after: Mapping[str, Fields]) -> dict[str, Fields | None]:
    found: dict[str, Fields | None] = {key: None for key in before if key not in after}
    for key, row in after.items():
        old = before.get(key)
        if old is None:
            found[key] = row
        elif old != row:
            found[key] = {name: value for name, value in row.items() if old.get(name) != value}
    return found
