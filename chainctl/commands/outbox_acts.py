"""`chainctl outbox retry`, `abandon` and `resend`: acts by hand, each with actor and reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chainctl.outbox_options import acting, cell, chosen_filter, outbox_of
from chainctl.output import data_json, table, talk
from chainctl.running import run_async
from chainctl.verified_mark import who
from orderchain.errors import SettingError
from orderchain.text import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chainctl.settings import Settings
    from outbox.acts import Act, Changed


@click.command()
@acting
def retry(settings: Settings, **given: Any) -> None:  # noqa: ANN401 - click's own
    """Give abnormal deliveries a new round of tries."""
    _do(settings, "retry", given)


@click.command()
@acting
def abandon(settings: Settings, **given: Any) -> None:  # noqa: ANN401 - click's own
    """End abnormal deliveries for good."""
    _do(settings, "abandon", given)


@click.command()
@acting
def resend(settings: Settings, **given: Any) -> None:  # noqa: ANN401 - click's own
    """Send deliveries now that are on their way, however far their consumer is."""
    _do(settings, "resend", given)


def _do(settings: Settings, what: Act, given: dict[str, Any]) -> None:
    chosen = [given[name] for name in ("message_ids", "destination", "consumer", "older_than")]
    if not any(chosen) and not given["is_all"]:
        raise SettingError("filter", "nothing", "--id, --destination, --consumer, ... or --all")
    changed = run_async(_act(settings, what, given))
    done = "to be changed" if given["dry_run"] else "changed"
    more = " (there may be more: see --limit)" if len(changed) == given["limit"] else ""
    talk(f"chainctl: {counted(len(changed), 'delivery', 'deliveries')} {done} by {what}{more}")
    if given["as_json"]:
        data_json(changed)
    elif changed:
        columns = ("message_id", "consumer", "status")
        table(columns, [[cell(getattr(row, column)) for column in columns] for row in changed])


async def _act(settings: Settings, what: Act, given: dict[str, Any]) -> Sequence[Changed]:
    from outbox import acts

    actor = acts.checked_text(
        "--actor", given["actor"] if given["actor"] is not None else who(None)
    )
    reason = acts.checked_text("--reason", given["reason"])
    chosen = chosen_filter(given)
    async with outbox_of(settings) as connection:
        if given["dry_run"]:
            return await acts.would_act(connection, what, chosen)
        return await acts.act(connection, what, chosen, actor=actor, reason=reason)
