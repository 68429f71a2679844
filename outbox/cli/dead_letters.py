"""`chainctl outbox dead`: dead letters of a consumer, and acts on them by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from chain_kernel.errors import SettingError
from chain_kernel.limits import ID_MAX
from chain_kernel.text import counted
from chainctl.event_loop import run_async
from chainctl.exits import ExitCode
from chainctl.options import (
    Group,
    act_by_hand,
    acts_by_hand,
    json_option,
    limit_option,
    options,
    since_option,
    uses_settings,
)
from chainctl.output import data, data_json, table, talk
from chainctl.units import Integer, Span
from outbox.acts import DeadLetterFilter
from outbox.cli.connections import act_on_letters, letters_of
from outbox.cli.connections import pass_over as passed_over
from outbox.cli.deliveries import acting, cell, consumer_option, id_option, listed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from uuid import UUID

    from chainctl.options import ActByHand
    from chainctl.settings import Settings
    from outbox.acts import Content, DeadLetters

_T = TypeVar("_T")

REASONS: Final = ("tries used up", "refused by the handler", "older than the inbox")
LIMIT: Final = 1_000
LIMIT_MAX: Final = 100_000
PAYLOAD_SHOWN: Final = 500
"""Characters shown of a payload that is text; --json shows all of it."""


@click.group("dead", cls=Group)
def group() -> None:
    """Dead letters of a consumer: messages whose tries are used up.

    --database is the consumer's own database. Acts are stored with actor, reason and time.
    """


_chosen: Final = options(
    id_option,
    consumer_option,
    click.option("--why", type=click.Choice(REASONS), help="Only those dead for this reason."),
    click.option("--key", metavar="KEY", help="Only those of this key."),
    click.option(
        "--older-than", type=Span(), metavar="SPAN",
        help="Only those that were dead so long ago (2h, 1d).",
    ),
    click.option(
        "--limit", type=Integer(1, LIMIT_MAX), default=LIMIT, show_default=True, metavar="COUNT",
        help="Show at most N, the newest.",
    ),
)  # fmt: skip
"""Gives a command the options that choose dead letters."""


@group.command("list")
@_chosen
@click.option("--abandoned", is_flag=True, help="Those that were abandoned too.")
@json_option
@uses_settings("database", "connect_seconds")
def list_(
    settings: Settings,
    abandoned: bool,
    as_json: bool,
    **chosen: Any,  # noqa: ANN401 - the options of `_chosen`
) -> None:
    """List dead letters, the newest first."""

    wanted = _filter(with_abandoned=abandoned, **chosen)
    found = _asked(settings, lambda letters: letters.list(wanted))
    if as_json:
        data_json(found)
        return
    columns = ("message_id", "consumer", "dead", "why", "failures", "last_error")
    lines = [
        (
            each.message_id,
            each.consumer,
            cell(each.dead_at),
            f"{each.reason}, abandoned" if each.abandoned_at else each.reason,
            each.failures,
            each.last_error,
        )
        for each in found
    ]
    table(columns, lines)


@group.command()
@click.argument("message_id", type=click.UUID)
@click.option("--consumer", metavar="NAME", help="Only those of this consumer.  [default: all]")
@json_option
@uses_settings("database", "connect_seconds")
def show(settings: Settings, message_id: UUID, consumer: str | None, as_json: bool) -> None:
    """Show a dead letter: why it is one, what it holds, what was done about it.

    One for each consumer that has given the message up.
    """
    found = _asked(settings, lambda letters: letters.show(message_id, consumer))
    if not found:
        raise SettingError("message", str(message_id), "a dead letter of this database")
    if as_json:
        data_json(found)
        return
    for content in found:
        _print_content(content)


@group.command()
@since_option
@limit_option
@json_option
@uses_settings("database", "connect_seconds")
def acts(
    settings: Settings,
    since_seconds: float | None,
    limit: int,
    as_json: bool,
) -> None:
    """Show what people did about dead letters, and why; the last first.

    Acts are kept forever, also those on messages that were applied or dropped since.
    """
    columns = (
        "act_id",
        "acted_at",
        "act",
        "message_id",
        "consumer",
        "actor",
        "login",
        "reason",
        "detail",
    )

    found = _asked(settings, lambda letters: letters.last_acts(since_seconds, limit))
    listed(found, columns, as_json)


@group.command()
@_chosen
@acting("message")
def retry(settings: Settings, as_json: bool, **given: Any) -> ExitCode:  # noqa: ANN401 - click's own
    """Give dead letters a new round of tries."""
    return _act("retry", settings, as_json, **given)


@group.command()
@_chosen
@acting("message")
def abandon(settings: Settings, as_json: bool, **given: Any) -> ExitCode:  # noqa: ANN401 - click's own
    """End dead letters: they are never worked on again."""
    return _act("abandon", settings, as_json, **given)


@group.command("pass-over")
@click.argument("consumer")
@click.argument("source")
@click.argument("offset", type=Integer(0, ID_MAX))
@acts_by_hand
@uses_settings("database", "kafka", "connect_seconds")
def pass_over(settings: Settings, consumer: str, source: str, offset: int, act: ActByHand) -> None:
    """Let a consumer go on after a record that cannot be read; none of its processes may run.

    SOURCE is topic:TOPIC:PARTITION. The record is read once more, and one that can be read is
    never passed over.
    """
    next_offset = run_async(passed_over(settings, consumer, source, offset, act))
    would = "would go on" if act.is_dry_run else "goes on"
    talk(f"chainctl: {consumer} {would} at {next_offset} of {source}")


def _act(
    act: str,
    settings: Settings,
    as_json: bool,
    *,
    is_all: bool,
    dry_run: bool,
    reason: str,
    actor: str | None,
    **chosen: Any,  # noqa: ANN401 - the options of `_chosen`
) -> ExitCode:
    """Act, and end with 1 where there was nothing to change."""
    if not is_all and not any(chosen[name] for name in chosen if name != "limit"):
        raise SettingError("filter", "nothing", "--id, --consumer, --why, ... or --all")
    wanted, by = _filter(with_abandoned=False, **chosen), act_by_hand(actor, reason, dry_run)
    done = run_async(act_on_letters(settings, act, wanted, by))
    tense = "to be " if dry_run else ""
    more = " (there may be more: see --limit)" if len(done) == wanted.limit else ""
    verb = "retried" if act == "retry" else "abandoned"
    talk(f"chainctl: {counted(len(done), 'dead letter')} {tense}{verb}{more}")
    if as_json:
        data_json(done)
    if done:
        return ExitCode.CLEAN
    talk("chainctl: no chosen message is a dead letter that waits (chainctl outbox dead list)")
    return ExitCode.FINDINGS


def _asked(settings: Settings, ask: Callable[[DeadLetters], Awaitable[_T]]) -> _T:
    """Return what `ask` answers, given the dead letters of the consumer's database."""

    async def run() -> _T:
        async with letters_of(settings) as letters:
            return await ask(letters)

    return run_async(run())


def _filter(
    *,
    with_abandoned: bool,
    message_ids: tuple[UUID, ...],
    consumer: str | None,
    why: str | None,
    key: str | None,
    older_than: float | None,
    limit: int,
) -> DeadLetterFilter:
    before = None if older_than is None else datetime.now(UTC) - timedelta(seconds=older_than)
    return DeadLetterFilter(
        message_ids=message_ids, consumer=consumer, reason=why, key=key, dead_before=before,
        with_abandoned=with_abandoned, limit=limit,
    )  # fmt: skip


def _print_content(content: Content) -> None:
    letter = content.letter
    ended = " abandoned" if letter.abandoned_at else ""
    data(
        f"{letter.message_id}  {letter.consumer}  {letter.dead_at:%Y-%m-%d %H:%M:%S}  "
        f"{letter.reason}, {counted(letter.failures, 'failure')}{ended}: {letter.last_error}"
    )
    received = f"received {letter.received_at:%Y-%m-%d %H:%M:%S}"
    place = f"{content.topic}/{content.partition} at {content.offset}"
    data(f"  from {place}, {received}, key {letter.key!r}")
    for name, value in content.headers.items():
        data(f"  header {name}: {value.decode(errors='backslashreplace')}")
    text = content.payload.decode(errors="backslashreplace")
    more = f" ... ({counted(len(content.payload), 'byte')})" if len(text) > PAYLOAD_SHOWN else ""
    data(f"  payload: {text[:PAYLOAD_SHOWN]}{more}")
    for act in content.acts:
        data(f"  {act.acted_at:%Y-%m-%d %H:%M:%S} {act.act} by {act.actor}: {act.reason}")
