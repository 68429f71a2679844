"""`chainctl topic create`: makes the topic from which a sequencer takes orders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from chain_kernel.errors import SettingError
from chain_kernel.text import counted
from chainctl.admin import RETENTION_MS, create_topic
from chainctl.event_loop import run_async
from chainctl.options import Group, Integer, json_option, uses_settings
from chainctl.output import data_json, talk
from chainctl.units import Span

if TYPE_CHECKING:
    from chainctl.settings import Settings

PARTITIONS_MAX: Final = 10_000
"""An intake reads all of them with one consumer: far above what that is good for."""

REPLICAS_MAX: Final = 2**15 - 1
"""Kafka's own bound."""


@click.group(cls=Group)
def topic() -> None:
    """The topics from which sequencers take orders. `chain create` makes those of chains."""


@topic.command()
@click.argument("name", metavar="NAME")
@click.option("--partitions", type=Integer(1, PARTITIONS_MAX), metavar="COUNT",
              help="Its partitions; orders keep their order within one.  [default: 1]")  # fmt: skip
@click.option("--replicas", type=Integer(1, REPLICAS_MAX), metavar="COUNT",
              help="Replicas of each partition.  [default: the brokers']")  # fmt: skip
@click.option("--retention", "retention_seconds", type=Span(), metavar="SPAN",
              help="How long an order waits for a sequencer before it is deleted.  [default: 14d]",
              )  # fmt: skip
@click.option("--set", "assignments", multiple=True, metavar="NAME=VALUE",
              help="A further setting of the topic, by Kafka's name; may be repeated.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only show what would be done; the brokers check it.")
@json_option
@uses_settings("kafka", "connect_seconds")
def create(
    settings: Settings,
    name: str,
    partitions: int | None,
    replicas: int | None,
    retention_seconds: float | None,
    assignments: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Make the topic NAME for `sequence --intake-topic`.

    A topic that is there already is compared with what is asked for, and with what an intake needs;
    it is never changed.
    """
    asked = dict(map(_assignment, assignments))
    if retention_seconds is not None:
        asked[RETENTION_MS] = str(round(retention_seconds * 1_000))
    done = run_async(
        create_topic(
            settings.kafka_config(),
            name,
            partitions=partitions,
            replicas=replicas,
            settings=asked,
            is_dry_run=dry_run,
            connect_seconds=settings.connect_seconds,
        )
    )
    what = "would be created" if dry_run else "created"
    state = what if done.topic_created else "is there already"
    shown = ", ".join(f"{key}={value}" for key, value in done.settings.items())
    talk(
        f"chainctl: topic {name} {state}: {counted(done.partitions, 'partition')}, replicas "
        f"{done.replicas or 'by the default of the brokers'}, {shown}"
    )
    if done.warning:
        talk(f"chainctl: {done.warning}", "warning")
    if as_json:
        data_json(done)


def _assignment(text: str) -> tuple[str, str]:
    name, is_there, value = text.partition("=")
    if not (name and is_there):
        raise SettingError("--set", text, "NAME=VALUE, such as min.insync.replicas=2")
    return name.strip(), value.strip()
