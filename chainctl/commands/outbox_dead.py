"""`chainctl outbox dead`: what a consumer gave up, and what people do about it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from chainctl.database import connected
from chainctl.groups import SuggestingGroup
from chainctl.marking import who
from chainctl.options import Integer, json_option, uses_settings
from chainctl.output import data, data_json, talk
from chainctl.running import run_async
from orderchain.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from datetime import datetime
    from uuid import UUID

    from chainctl.settings import Settings
    from outbox.dead_letter import Content, DeadLetter, DeadLetterFilter, DeadLetters

REASONS: Final = ("tries used up", "refused by the handler", "older than the inbox")
LIMIT: Final = 1_000
LIMIT_MAX: Final = 100_000
PAYLOAD_SHOWN: Final = 500
"""Of a payload that is text; the whole of it comes with --json."""


@click.group("dead", cls=SuggestingGroup)
def group() -> None:
    """Dead letters of a consumer: messages whose tries are used up.

    --database is the consumer's own database. Acts are stored with actor, reason and time.
    """


def _chosen(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that choose dead letters."""
    for option in (
        click.option("--limit", type=Integer(1, LIMIT_MAX), default=LIMIT, show_default=True,
                     metavar="N", help="At most so many, the newest."),
        click.option("--dead-before", type=click.DateTime(["%Y-%m-%dT%H:%M:%S%z"]),
                     metavar="TIME", help="Dead before this: 2026-11-21T12:00:00+00:00."),
        click.option("--key", metavar="KEY", help="Of this key."),
        click.option("--why", type=click.Choice(REASONS), help="Dead for this reason."),
        click.option("--consumer", metavar="NAME", help="Of this consumer.  [default: all]"),
    ):  # fmt: skip
        function = option(function)
    return function


def _acting(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command what an act needs."""
    for option in (
        click.option("--dry-run", is_flag=True, help="Tell which, and do nothing."),
        click.option("--all", "is_all", is_flag=True, help="All that fit, not one by its id."),
        click.option("--actor", metavar="TEXT", help="Who does this.  [default: user@host]"),
        click.option("--reason", required=True, metavar="TEXT", help="Why; stored for good."),
    ):
        function = option(function)
    return function


@group.command("list")
@_chosen
@click.option("--abandoned", is_flag=True, help="Those that were abandoned too.")
@json_option
@uses_settings("database", "connect_seconds")
def list_(settings: Settings, abandoned: bool, as_json: bool, **chosen: Any) -> None:  # noqa: ANN401
    """List dead letters, the newest first."""

    async def run() -> list[DeadLetter]:
        async with _letters(settings) as letters:
            return await letters.list(_filter(abandoned, **chosen))

    for letter in run_async(run()):
        _tell(letter, as_json)


@group.command()
@click.argument("message_id", type=click.UUID)
@click.option("--consumer", metavar="NAME", help="Of this consumer.  [default: all]")
@json_option
@uses_settings("database", "connect_seconds")
def show(settings: Settings, message_id: UUID, consumer: str | None, as_json: bool) -> None:
    """Show a dead letter: why it is one, what it holds, what was done about it."""

    async def run() -> Sequence[Content]:
        async with _letters(settings) as letters:
            return await letters.show(message_id, consumer)

    found = run_async(run())
    if not found:
        raise SettingError("message", str(message_id), "a dead letter of this database")
    for content in found:
        if as_json:
            data_json(content)
        else:
            _tell_content(content)


@group.command()
@click.argument("message_id", type=click.UUID, required=False)
@_chosen
@_acting
@json_option
@uses_settings("database", "connect_seconds")
def retry(settings: Settings, as_json: bool, **given: Any) -> None:  # noqa: ANN401
    """Give dead letters a new round of tries: one by its id, or with --all those that fit."""
    _act("retry", settings, as_json, **given)


@group.command()
@click.argument("message_id", type=click.UUID, required=False)
@_chosen
@_acting
@json_option
@uses_settings("database", "connect_seconds")
def abandon(settings: Settings, as_json: bool, **given: Any) -> None:  # noqa: ANN401
    """End dead letters for good: one by its id, or with --all those that fit."""
    _act("abandon", settings, as_json, **given)


def _act(
    act: str,
    settings: Settings,
    as_json: bool,
    *,
    message_id: UUID | None,
    is_all: bool,
    dry_run: bool,
    reason: str,
    actor: str | None,
    **chosen: Any,  # noqa: ANN401
) -> None:
    if (message_id is None) != is_all:
        raise SettingError("message", message_id and str(message_id), "one id, or --all")
    name = who(actor)

    async def run() -> list[DeadLetter]:
        async with _letters(settings) as letters:
            meant = await _meant(letters, message_id, _filter(False, **chosen))
            if dry_run:
                return meant
            do = letters.retry if act == "retry" else letters.abandon
            return [one for one in meant if await do(one, actor=name, reason=reason)]

    done = run_async(run())
    if message_id is not None and not done:
        raise SettingError("message", str(message_id), "a dead letter that nobody has ended")
    talk(f"chainctl: {len(done)} dead letters {'would be' if dry_run else 'were'} "
         f"{'retried' if act == 'retry' else 'abandoned'}")  # fmt: skip
    if as_json:
        data_json({"act": act, "dry_run": dry_run, "messages": done})


async def _meant(
    letters: DeadLetters, message_id: UUID | None, chosen: DeadLetterFilter
) -> list[DeadLetter]:
    """Return the dead letters of an act, the oldest first."""
    if message_id is None:
        return list(reversed(await letters.list(chosen)))
    found = await letters.show(message_id, chosen.consumer)
    return [one.letter for one in found if one.letter.abandoned_at is None]


def _filter(
    with_abandoned: bool,
    *,
    consumer: str | None,
    why: str | None,
    key: str | None,
    dead_before: datetime | None,
    limit: int,
) -> DeadLetterFilter:
    from outbox.dead_letter import DeadLetterFilter

    return DeadLetterFilter(
        consumer=consumer, reason=why, key=key, dead_before=dead_before,
        with_abandoned=with_abandoned, limit=limit,
    )  # fmt: skip


@asynccontextmanager
async def _letters(settings: Settings) -> AsyncIterator[DeadLetters]:
    from outbox.dead_letter import DeadLetters

    async with connected(settings.database_dsn(), settings.connect_seconds) as connection:
        yield DeadLetters(connection)


def _tell(letter: DeadLetter, as_json: bool) -> None:
    if as_json:
        data_json(letter)
        return
    ended = " abandoned" if letter.abandoned_at else ""
    data(
        f"{letter.message_id}  {letter.consumer}  {letter.dead_at:%Y-%m-%d %H:%M:%S}  "
        f"{letter.reason}, {letter.failures} failures{ended}: {letter.last_error}"
    )


def _tell_content(content: Content) -> None:
    _tell(content.letter, as_json=False)
    received = f"received {content.letter.received_at:%Y-%m-%d %H:%M:%S}"
    place = f"{content.topic}/{content.partition} at {content.offset}"
    data(f"  from {place}, {received}, key {content.letter.key!r}")
    for name, value in content.headers.items():
        data(f"  header {name}: {value.decode(errors='backslashreplace')}")
    text = content.payload.decode(errors="backslashreplace")
    more = f" ... ({len(content.payload)} bytes)" if len(text) > PAYLOAD_SHOWN else ""
    data(f"  payload: {text[:PAYLOAD_SHOWN]}{more}")
    for act in content.acts:
        data(f"  {act.acted_at:%Y-%m-%d %H:%M:%S} {act.act} by {act.actor}: {act.reason}")
