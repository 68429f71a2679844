"""`chainctl topic create`: makes the topic from which a sequencer takes orders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from chain_kernel.errors import SettingError
from chainctl.admin import create_topic
from chainctl.event_loop import run_async
from chainctl.options import Group, json_option, uses_settings
from chainctl.output import data_json, talk
from chainctl.units import Integer

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
@click.option("--partitions", type=Integer(1, PARTITIONS_MAX), metavar="COUNT", default=1,
              show_default=True, help="Orders keep their order within one.")  # fmt: skip
@click.option("--replicas", type=Integer(1, REPLICAS_MAX), metavar="COUNT",
              help="Replicas of each partition.  [default: the brokers']")  # fmt: skip
@click.option("--set", "assignments", multiple=True, metavar="NAME=VALUE",
              help="A setting of the topic, by Kafka's name; may be repeated.")  # fmt: skip
@json_option
@uses_settings("kafka", "connect_seconds")
def create(
    settings: Settings,
    name: str,
    partitions: int,
    replicas: int | None,
    assignments: tuple[str, ...],
    as_json: bool,
) -> None:
    """Make the topic NAME for `sequence --intake-topic`, which keeps records for 14 days.

    A topic that is there already is left as it is. Either is refused where no intake could use it.
    """
    kafka, seconds = settings.kafka_config(), settings.connect_seconds
    asked: dict[str, str] = {}
    for text in assignments:
        its_name, is_there, value = text.partition("=")
        if not (its_name and is_there):
            raise SettingError("--set", text, "NAME=VALUE, such as min.insync.replicas=2")
        asked[its_name.strip()] = value.strip()
    made = create_topic(
        kafka, name, partitions=partitions, replicas=replicas, settings=asked,
        connect_seconds=seconds,
    )  # fmt: skip
    is_created = run_async(made)
    talk(f"chainctl: topic {name} {'created' if is_created else 'is there already'}")
    if as_json:
        data_json({"topic": name, "topic_created": is_created})
