"""`chainctl status`, `top`, `leader`, `step-down`, `takeover`: chains, and who leads them."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec import Struct
from msgspec.structs import replace

from chain_kernel.errors import SettingError
from chain_kernel.text import counted
from chainctl.database import SQL, acting_on, looking, utc
from chainctl.demo_option import demo_option
from chainctl.event_loop import run_async
from chainctl.exits import ExitCode
from chainctl.options import (
    Command,
    acts_by_hand,
    chain_option,
    json_option,
    some_chain_option,
    uses_settings,
    watch_option,
)
from chainctl.output import data, data_json, repeated, table, talk
from chainctl.units import Span

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chainctl.options import ActByHand
    from chainctl.settings import Settings


# -- status, top ----------------------------------------------------------------------------------

_Row = dict[str, object]

_RECEIVER_COLUMNS: Final = (
    "receiver", "head_delivered", "behind_ids", "behind_rows", "behind_seconds", "updated",
    "checkpoint", "halted",
)  # fmt: skip
_CHAIN_COLUMNS: Final = (
    "chain", "leader", "leader_state", "last_beat_seconds", "epoch", "head_persisted",
    "unpublished_rows", "unpublished_seconds", "last_commit",
)  # fmt: skip
_LAG_COLUMNS: Final = ("chain", "receiver", "behind_rows", "behind_seconds", "halted")

_TOP_SPAN: Final = "2s"


@click.command(cls=Command)
@chain_option
@watch_option
@demo_option
@json_option
@uses_settings("database", "connect_seconds")
def status(settings: Settings, chain_id: int, watch_seconds: float | None, as_json: bool) -> None:
    """Show the state of a chain: its heads, its leader, its receivers, its intakes."""

    def show() -> None:
        heads, receivers, intakes = run_async(_state(settings, chain_id))
        if as_json:
            data_json({**heads, "receivers": receivers, "intakes": intakes})
            return
        table(("what", "value"), list(heads.items()))
        for part, names in (
            (receivers, _RECEIVER_COLUMNS),
            (intakes, ("source", "position", "rejects")),
        ):
            if part:
                data("")
                table(names, [tuple(row[name] for name in names) for row in part])

    repeated(watch_seconds, show)


@click.command(cls=Command)
@some_chain_option
@click.option(
    "--watch", "watch_seconds", type=Span(), metavar="SPAN", default=_TOP_SPAN,
    show_default=True, help="Show it again after each SPAN.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="Show it once and end.")
@json_option
@uses_settings("database", "connect_seconds")
def top(
    settings: Settings, chain_id: int | None, watch_seconds: float, once: bool, as_json: bool
) -> None:
    """Show all chains with their leaders and receivers, until Ctrl-C."""

    def show() -> None:
        chains, receivers = run_async(_overview(settings, chain_id))
        if as_json:
            data_json({"chains": chains, "receivers": receivers})
            return
        table(_CHAIN_COLUMNS, [tuple(row[name] for name in _CHAIN_COLUMNS) for row in chains])
        data("")
        table(_LAG_COLUMNS, [tuple(row[name] for name in _LAG_COLUMNS) for row in receivers])

    repeated(None if once else watch_seconds, show)


async def _state(settings: Settings, chain_id: int) -> tuple[_Row, list[_Row], list[_Row]]:
    """Return the chain, its receivers and its intakes, of one snapshot."""
    async with looking(settings, chain_id) as connection:
        chain = await connection.fetchrow(SQL["chain_status"], chain_id)
        receivers = await connection.fetch(SQL["lag"], chain_id, None)
        intakes = await connection.fetch(SQL["intakes"], chain_id)
    return (
        state_of(chain),
        [
            {
                "receiver": row["receiver"],
                "head_delivered": row["head_delivered"],
                "behind_ids": row["behind_ids"],
                "behind_rows": row["behind_rows"],
                "behind_seconds": round(row["behind_seconds"], 3),
                "updated": utc(row["updated_at"]),
                "checkpoint": row["checkpoint"],
                "halted": row["halted"],
            }
            for row in receivers
        ],
        [dict(row) for row in intakes],
    )


async def _overview(settings: Settings, chain_id: int | None) -> tuple[list[_Row], list[_Row]]:
    """Return every chain, and every receiver with its lag, of one snapshot."""
    async with looking(settings, chain_id) as connection:
        chains = [state_of(row) for row in await connection.fetch(SQL["chain_status"], chain_id)]
        receivers: list[_Row] = [
            {
                "chain": chain["chain"],
                "receiver": row["receiver"],
                "behind_rows": row["behind_rows"],
                "behind_seconds": round(row["behind_seconds"], 3),
                "halted": row["halted"],
            }
            for chain in chains
            for row in await connection.fetch(SQL["lag"], chain["chain"], None)
        ]
    return chains, receivers


def state_of(chain: Mapping[str, Any]) -> _Row:
    """Return a row of the statement `chain_status` as it is written out."""
    beat = chain["beat_age_seconds"]
    return {
        "chain": chain["chain_id"],
        "epoch": chain["epoch"],
        "leader": chain["owner"] or None,
        "leader_state": leader_state(chain),
        "leader_life": leader_life(chain),
        "leader_since": utc(chain["leader_since"]) if chain["leader_since"] else None,
        "last_beat_seconds": None if beat is None else round(beat, 3),
        "lease_seconds": chain["lease_seconds"],
        "backend": chain["backend_pid"] if chain["has_backend"] else None,
        "head_persisted": chain["last_id"],
        "head_published": chain["published_id"],
        "unpublished_ids": chain["last_id"] - chain["published_id"],
        "unpublished_rows": chain["unpublished_rows"],
        "unpublished_seconds": round(chain["unpublished_seconds"], 3),
        "published": published_life(chain),
        "last_commit": utc(chain["committed_at"]) if chain["last_id"] else None,
        "topic": chain["topic"],
        "partition_ids": chain["partition_ids"],
        "created": utc(chain["created_at"]),
    }


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


# -- leader, step-down, takeover ------------------------------------------------------------------

_LEADER: Final = (
    "chain", "leader", "leader_state", "leader_life", "leader_since", "last_beat_seconds",
    "lease_seconds", "epoch", "backend",
)  # fmt: skip
_TERMS: Final = ("epoch", "owner", "began", "after_id", "timeline")
_TERMS_SHOWN: Final = 10
_LOOK_SECONDS: Final = 0.2


class LeaderAct(Struct, frozen=True, kw_only=True):
    """What `step-down` or `takeover` did."""

    chain: int
    epoch: int
    """The term that is to end."""
    act_id: int | None
    """The row of chain_act that records it; null for a dry run."""
    is_over: bool | None
    """Whether the term has ended, where that was waited for."""
    next_leader: str | None = None
    """Who leads after that, if somebody does."""
    next_epoch: int | None = None


@click.command(cls=Command)
@chain_option
@click.option("--check", "is_check", is_flag=True, help="Return exit code 1 if nobody leads.")
@click.option(
    "--max-beat", "max_beat", type=Span(), metavar="SPAN",
    help="As --check, with this as the longest time since the last beat, not the lease.",
)  # fmt: skip
@watch_option
@json_option
@uses_settings("database", "connect_seconds")
def leader(
    settings: Settings,
    chain_id: int,
    is_check: bool,
    max_beat: float | None,
    watch_seconds: float | None,
    as_json: bool,
) -> ExitCode:
    """Show who leads a chain, since when, how alive that process is, and the last terms.

    The state is `leads`, `steps down`, `silent` (no beat for longer than its lease: dead, or cut
    off), `handed over` or `never led`. With --check or --max-beat it is a check for cron and
    Nagios.
    """

    def show() -> ExitCode:
        state, terms = run_async(_terms(settings, chain_id))
        if as_json:
            data_json({**state, "terms": terms})
        else:
            table(("what", "value"), list(state.items()))
            if terms:
                data("")
                table(_TERMS, [tuple(term[name] for name in _TERMS) for term in terms])
        if not (is_check or max_beat is not None) or _is_led(state, max_beat):
            return ExitCode.CLEAN
        talk(f"chainctl: nobody leads chain {chain_id}: {state['leader_life']}")
        return ExitCode.FINDINGS

    return repeated(watch_seconds, show)


def _is_led(state: Mapping[str, Any], max_beat: float | None) -> bool:
    """Return whether a process leads, and its last beat is younger than `max_beat`, if given."""
    if max_beat is None or state["leader_state"] in ("handed over", "never led"):
        return state["leader_state"] in ("leads", "steps down")
    beat = state["last_beat_seconds"]
    return beat is not None and beat <= max_beat


@click.command("step-down", cls=Command)
@chain_option
@click.option(
    "--wait", "wait_seconds", type=Span(), metavar="SPAN",
    help="Wait until the term has ended; exit code 1 if it has not after SPAN.",
)  # fmt: skip
@acts_by_hand
@json_option
@uses_settings("database", "connect_seconds")
def step_down(
    settings: Settings, chain_id: int, wait_seconds: float | None, act: ActByHand, as_json: bool
) -> ExitCode:
    """Ask the leader of a chain to hand over.

    It takes no more orders, commits and publishes what it has accepted, and ends; a standby leads
    within half a second. It learns of the request with its next beat, after a fifth of its lease.
    Needs the owner's rights.
    """
    done = run_async(change_leader(settings, chain_id, "step-down", act, wait_seconds))
    asked = "would be asked" if act.is_dry_run else "is asked"
    talk(f"chainctl: the leader of chain {chain_id} {asked} to step down (epoch {done.epoch})")
    return _finish(done, wait_seconds, as_json=as_json)


@click.command(cls=Command)
@chain_option
@click.option(
    "--wait", "wait_seconds", type=Span(), metavar="SPAN",
    help="Wait until another process leads; exit code 1 if none does after SPAN.",
)  # fmt: skip
@acts_by_hand
@json_option
@uses_settings("database", "connect_seconds")
def takeover(
    settings: Settings, chain_id: int, wait_seconds: float | None, act: ActByHand, as_json: bool
) -> ExitCode:
    """Let the next process lead at once, whether or not the old leader is alive.

    A standby, or the next sequencer that starts, takes over without waiting for the lease. The old
    leader is fenced then: it can commit nothing more. Use it where a leader hangs; `step-down` is
    the gentle way. Needs the owner's rights.
    """
    done = run_async(change_leader(settings, chain_id, "takeover", act, wait_seconds))
    may = "would be" if act.is_dry_run else "is"
    talk(f"chainctl: the lease of chain {chain_id} {may} free (epoch {done.epoch})")
    return _finish(done, wait_seconds, as_json=as_json)


def _finish(done: LeaderAct, wait_seconds: float | None, *, as_json: bool) -> ExitCode:
    if done.is_over is False:
        talk(f"chainctl: epoch {done.epoch} has not ended after {wait_seconds:g} s")
    elif done.next_leader is not None:
        led_by = f"{done.next_leader} leads, in epoch {done.next_epoch}"
        talk(f"chainctl: epoch {done.epoch} has ended; {led_by}")
    elif done.is_over:
        talk(f"chainctl: epoch {done.epoch} has ended; nobody leads yet")
    if as_json:
        data_json(done)
    return ExitCode.FINDINGS if done.is_over is False else ExitCode.CLEAN


async def _terms(
    settings: Settings, chain_id: int
) -> tuple[dict[str, object], list[dict[str, object]]]:
    async with looking(settings, chain_id) as connection:
        state = state_of(await connection.fetchrow(SQL["chain_status"], chain_id))
        terms = await connection.fetch(SQL["terms"], chain_id, _TERMS_SHOWN)
    return (
        {name: state[name] for name in _LEADER},
        [
            {
                "epoch": term["epoch"],
                "owner": term["owner"],
                "began": utc(term["began_at"]),
                "after_id": term["after_id"],
                "timeline": term["timeline"],
            }
            for term in terms
        ],
    )


async def change_leader(
    settings: Settings, chain_id: int, what: str, act: ActByHand, wait_seconds: float | None = None
) -> LeaderAct:
    """Change the lease and record it, both or neither; then wait for the end of the term."""
    statement = "ask_to_step_down" if what == "step-down" else "free_lease"
    async with acting_on(settings, chain_id, is_dry_run=act.is_dry_run) as connection:
        epoch = await connection.fetchval(SQL[statement], chain_id)
        if epoch is None:
            raise SettingError("--chain", chain_id, "a chain that a process leads")
        act_id = await connection.fetchval(
            SQL["record_act"], chain_id, None, what, act.actor, act.reason, f"epoch {epoch}"
        )
    done = LeaderAct(
        chain=chain_id, epoch=epoch, act_id=None if act.is_dry_run else act_id, is_over=None
    )
    if wait_seconds is None or act.is_dry_run:
        return done
    return await _after_its_end(settings, done, wait_seconds, what)


async def _after_its_end(
    settings: Settings, done: LeaderAct, seconds: float, what: str
) -> LeaderAct:
    """Return `done` with whether its term ends within `seconds`, and with who leads then."""
    until = time.monotonic() + seconds
    while True:
        async with looking(settings, done.chain) as connection:
            chain = await connection.fetchrow(SQL["chain_status"], done.chain)
        if chain["epoch"] != done.epoch:
            is_led = leader_state(chain) in {"leads", "steps down"}
            return replace(
                done,
                is_over=True,
                next_leader=chain["owner"] if is_led else None,
                next_epoch=chain["epoch"] if is_led else None,
            )
        if what == "step-down" and chain["released"]:
            return replace(done, is_over=True)
        if time.monotonic() >= until:
            return replace(done, is_over=False)
        await asyncio.sleep(_LOOK_SECONDS)
