"""`chainctl leader`, `step-down` and `takeover`: who leads a chain, and who is to."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

import click
from msgspec import Struct

from chainctl.commands.status import state_of
from chainctl.database import SQL, acting_on, looking, utc
from chainctl.exits import ExitCode
from chainctl.options import (
    Span,
    acts_by_hand,
    chain_option,
    json_option,
    uses_settings,
    watch_option,
)
from chainctl.output import data, data_json, repeated, table, talk
from chainctl.running import run_async
from orderchain.errors import SettingError

if TYPE_CHECKING:
    from chainctl.options import ActByHand
    from chainctl.settings import Settings

_LEADER: Final = (
    "chain", "leader", "leader_state", "leader_since", "last_beat_seconds", "lease_seconds",
    "epoch", "backend",
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


@click.command()
@chain_option
@watch_option
@json_option
@uses_settings("database", "connect_seconds")
def command(settings: Settings, chain_id: int, watch_seconds: float | None, as_json: bool) -> None:
    """Show who leads a chain, since when, how alive that process is, and the last terms.

    The state is `leads`, `steps down`, `silent` (no beat for longer than its lease: dead, or cut
    off), `handed over` or `never led`.
    """

    def show() -> None:
        state, terms = run_async(_leader(settings, chain_id))
        if as_json:
            data_json({**state, "terms": terms})
            return
        table(("what", "value"), list(state.items()))
        if terms:
            data("")
            table(_TERMS, [tuple(term[name] for name in _TERMS) for term in terms])

    repeated(watch_seconds, show)


@click.command("step-down")
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
    done = run_async(_change(settings, chain_id, "step-down", act, wait_seconds))
    asked = "would be asked" if act.is_dry_run else "is asked"
    talk(f"chainctl: the leader of chain {chain_id} {asked} to step down (epoch {done.epoch})")
    return _finish(done, wait_seconds, as_json=as_json)


@click.command()
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
    done = run_async(_change(settings, chain_id, "takeover", act, wait_seconds))
    may = "would be" if act.is_dry_run else "is"
    talk(f"chainctl: the lease of chain {chain_id} {may} free (epoch {done.epoch})")
    return _finish(done, wait_seconds, as_json=as_json)


def _finish(done: LeaderAct, wait_seconds: float | None, *, as_json: bool) -> ExitCode:
    if done.is_over is False:
        talk(f"chainctl: epoch {done.epoch} has not ended after {wait_seconds:g} s")
    if as_json:
        data_json(done)
    return ExitCode.FINDINGS if done.is_over is False else ExitCode.CLEAN


async def _leader(
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


async def _change(
    settings: Settings, chain_id: int, what: str, act: ActByHand, wait_seconds: float | None
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
    is_over = None
    if wait_seconds is not None and not act.is_dry_run:
        is_over = await _ends(settings, chain_id, epoch, wait_seconds, what)
    return LeaderAct(
        chain=chain_id, epoch=epoch, act_id=None if act.is_dry_run else act_id, is_over=is_over
    )


async def _ends(settings: Settings, chain_id: int, epoch: int, seconds: float, what: str) -> bool:
    """Return whether the term `epoch` ends within `seconds`."""
    until = time.monotonic() + seconds
    while True:
        async with looking(settings, chain_id) as connection:
            chain = await connection.fetchrow(SQL["chain_status"], chain_id)
        if chain["epoch"] != epoch or (what == "step-down" and chain["released"]):
            return True
        if time.monotonic() >= until:
            return False
        await asyncio.sleep(_LOOK_SECONDS)
