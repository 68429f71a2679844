"""`chainctl outbox`: messages that need no strict order."""

from __future__ import annotations

import click

from chainctl.options import Group
from outbox.cli.dead_letters import group as dead
from outbox.cli.deliveries import (
    abandon,
    acts,
    list_,
    resend,
    retry,
    show,
    status,
)
from outbox.cli.destinations import group as destination
from outbox.cli.relay import keep, relay


@click.group(cls=Group)
def outbox() -> None:
    """Messages that must arrive, in any order: the sender's side, and a consumer's dead letters."""


for _each in (
    relay,
    destination,
    status,
    list_,
    show,
    acts,
    retry,
    abandon,
    resend,
    keep,
    dead,
):
    outbox.add_command(_each)
