"""`chainctl outbox`: messages that need no strict order."""

from __future__ import annotations

import click

from chainctl.commands.outbox.dead_letters import group as dead
from chainctl.commands.outbox.deliveries import (
    abandon,
    acts,
    failed,
    list_,
    resend,
    retry,
    show,
    status,
)
from chainctl.commands.outbox.destinations import group as destination
from chainctl.commands.outbox.relay import keep, relay
from chainctl.options import SuggestingGroup


@click.group(cls=SuggestingGroup)
def outbox() -> None:
    """Messages that must arrive, in any order: the sender's side, and a consumer's dead letters."""


for _each in (
    relay,
    destination,
    status,
    list_,
    show,
    acts,
    failed,
    retry,
    abandon,
    resend,
    keep,
    dead,
):
    outbox.add_command(_each)
