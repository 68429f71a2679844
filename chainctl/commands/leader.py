"""`chainctl leader`, `step-down` and `takeover`: the leader of a chain, and acts on it."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec import Struct
from msgspec.structs import replace

from chain_kernel.errors import ConnectError, RetryError, SettingError
from chainctl.database import SQL, acting_on, looking
from chainctl.event_loop import run_async
from chainctl.exits import ExitCode
from chainctl.options import Command, acts_by_hand, chain_option, json_option, uses_settings
from chainctl.output import data, data_json, talk
from chainctl.units import Span
from chainctl.views import ChainLine, plain, read_chains, write, write_facts

if TYPE_CHECKING:
    from chainctl.options import ActByHand
    from chainctl.settings import Settings


_LEADER: Final = ("chain", "leader", "leader_state", "leader_since", "last_beat_seconds",
                  "lease_seconds", "epoch", "backend")  # fmt: skip
_TERMS: Final = ("epoch", "owner", "began", "after_id", "timeline")
_TERMS_SHOWN: Final = 10
_LOOK_SECONDS: Final = 0.2


class LeaderAct(Struct, frozen=True, kw_only=True):
    """The result of `step-down` or `takeover`."""

    chain: int
    epoch: int
    """The term that is to end."""
    act_id: int | None
    """The row of chain_act that records it; null for a dry run."""
    is_over: bool | None
    """True if the term has ended; null where that was not waited for."""
    next_leader: str | None = None
    """The leader after that, if there is one."""
    next_epoch: int | None = None


@click.command(cls=Command)
@chain_option
@click.option("--check", "is_check", is_flag=True, help="Return exit code 1 without a leader.")
@click.option(
    "--max-beat",
    "max_beat",
    type=Span(),
    metavar="SPAN",
    help="As --check, with this as the longest time since the last beat, not the lease.",
)
@json_option
@uses_settings("database", "connect_seconds")
def leader(
    settings: Settings, chain_id: int, is_check: bool, max_beat: float | None, as_json: bool
) -> ExitCode:
    """Show who leads a chain, since when, how alive that process is, and the last terms.

    The state is `leads`, `steps down`, `silent` (no beat for longer than its lease: dead, or cut
    off), `handed over` or `never led`. With --check or --max-beat it is a check for cron and
    Nagios.
    """
    chain, terms = run_async(_terms(settings, chain_id))
    shown = {column: getattr(chain, column) for column in _LEADER}
    if as_json:
        data_json({**shown, "terms": terms})
    else:
        write_facts(shown)
        if terms:
            data("")
            write(_TERMS, terms)
    if not (is_check or max_beat is not None) or _is_led(chain, max_beat):
        return ExitCode.CLEAN
    talk(f"chainctl: chain {chain_id} has no leader: {chain.leader_life}")
    return ExitCode.FINDINGS


def _is_led(chain: ChainLine, max_beat: float | None) -> bool:
    """Return whether a process leads, and its last beat is younger than `max_beat`, if given."""
    if max_beat is None or chain.leader_state in ("handed over", "never led"):
        return chain.is_led
    beat = chain.last_beat_seconds
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
    done = run_async(change_leader(settings, chain_id, "step-down", act))
    asked = "would be asked" if act.is_dry_run else "is asked"
    talk(f"chainctl: the leader of chain {chain_id} {asked} to step down (epoch {done.epoch})")
    return _finish(settings, done, wait_seconds, "step-down", as_json=as_json)


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
    done = run_async(change_leader(settings, chain_id, "takeover", act))
    may = "would be" if act.is_dry_run else "is"
    talk(f"chainctl: the lease of chain {chain_id} {may} free (epoch {done.epoch})")
    return _finish(settings, done, wait_seconds, "takeover", as_json=as_json)


def _finish(
    settings: Settings, done: LeaderAct, wait_seconds: float | None, what: str, *, as_json: bool
) -> ExitCode:
    """Wait for the end of the term, unless this was a dry run, and report."""
    if wait_seconds is not None and done.act_id is not None:
        done = run_async(_after_its_end(settings, done, wait_seconds, what))
    if done.is_over is False:
        talk(f"chainctl: epoch {done.epoch} has not ended after {wait_seconds:g} s")
    elif done.next_leader is not None:
        led_by = f"{done.next_leader} leads, in epoch {done.next_epoch}"
        talk(f"chainctl: epoch {done.epoch} has ended; {led_by}")
    elif done.is_over:
        talk(f"chainctl: epoch {done.epoch} has ended; there is no new leader yet")
    if as_json:
        data_json(done)
    return ExitCode.FINDINGS if done.is_over is False else ExitCode.CLEAN


async def _terms(settings: Settings, chain_id: int) -> tuple[ChainLine, list[dict[str, Any]]]:
    async with looking(settings, chain_id) as connection:
        (chain,) = await read_chains(connection, chain_id)
        terms = await connection.fetch(SQL["terms"], chain_id, _TERMS_SHOWN)
    return chain, list(map(plain, terms))


async def change_leader(settings: Settings, chain_id: int, what: str, act: ActByHand) -> LeaderAct:
    """Change the lease and record it, both or neither."""
    statement = "ask_to_step_down" if what == "step-down" else "free_lease"
    async with acting_on(settings, chain_id, is_dry_run=act.is_dry_run) as connection:
        epoch = await connection.fetchval(SQL[statement], chain_id)
        if epoch is None:
            raise SettingError("--chain", chain_id, "a chain that a process leads")
        act_id = await connection.fetchval(
            SQL["record_act"], chain_id, None, what, act.actor, act.reason, f"epoch {epoch}"
        )
    return LeaderAct(
        chain=chain_id, epoch=epoch, act_id=None if act.is_dry_run else act_id, is_over=None
    )


async def _after_its_end(
    settings: Settings, done: LeaderAct, seconds: float, what: str
) -> LeaderAct:
    """Return `done` with whether its term ends within `seconds`, and with who leads then."""
    until = time.monotonic() + seconds
    while True:
        # The act is done: a database that is away for a while refuses nothing any more.
        with suppress(RetryError, ConnectError):
            async with looking(settings, done.chain) as connection:
                (chain,) = await read_chains(connection, done.chain)
            if chain.epoch != done.epoch:
                leader, epoch = (chain.leader, chain.epoch) if chain.is_led else (None, None)
                return replace(done, is_over=True, next_leader=leader, next_epoch=epoch)
            if what == "step-down" and chain.leader_state == "handed over":
                return replace(done, is_over=True)
        if time.monotonic() >= until:
            return replace(done, is_over=False)
        await asyncio.sleep(_LOOK_SECONDS)
