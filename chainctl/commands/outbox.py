"""`chainctl outbox`: runs a relay; shows and fixes messages that need no strict order."""

from __future__ import annotations

import click

from chainctl.commands.outbox_acts import abandon, resend, retry
from chainctl.commands.outbox_dead import group as dead
from chainctl.commands.outbox_deliveries import failed, list_, show, status
from chainctl.commands.outbox_destination import group as destination
from chainctl.commands.outbox_keep import keep
from chainctl.commands.outbox_relay import relay
from chainctl.options import SuggestingGroup


@click.group(cls=SuggestingGroup)
def command() -> None:
    """Messages that must arrive, in any order: the sender's side, and a consumer's dead letters."""


for _each in (relay, destination, status, list_, show, failed, retry, abandon, resend, keep, dead):
    command.add_command(_each)
