"""`chainctl topic create`: makes the topic from which a sequencer takes orders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from chain_kernel.errors import SettingError
from chainctl.event_loop import run_async
from chainctl.options import Group, Integer, json_option, uses_settings
from chainctl.output import data_json, talk
from chainctl.topics import check_topic_name, connected_topics

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chainctl.settings import Settings

PARTITIONS_MAX: Final = 10_000
"""An intake reads all of them with one consumer: far above what that is good for."""

REPLICAS_MAX: Final = 2**15 - 1
"""Kafka's own bound."""

INTAKE_SETTINGS: Final[Mapping[str, str]] = {
    # Each record is an order. A compacted topic keeps the last one of a key alone.
    "cleanup.policy": "delete",
    # Two weeks: records wait here while no sequencer runs, and one that was deleted stops the
    # intake forever.
    "retention.ms": str(14 * 24 * 3_600 * 1_000),
}


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
    settings: Settings, name: str, assignments: tuple[str, ...], as_json: bool, **size: int | None
) -> None:
    """Make the topic NAME for `sequence --intake-topic`, which keeps records for 14 days.

    A topic that is there already is left as it is. Either is refused where no intake could use it.
    """
    check_topic_name(name)
    asked = {**INTAKE_SETTINGS, **dict(map(_assignment, assignments))}
    is_created = run_async(_create(settings, name, {"settings": asked, **size}))
    talk(f"chainctl: topic {name} {'created' if is_created else 'is there already'}")
    if as_json:
        data_json({"topic": name, "topic_created": is_created})


async def _create(settings: Settings, name: str, asked: dict[str, Any]) -> bool:
    from sequencer import TopicIntakeConfig, check_intake_topic

    kafka, seconds = settings.kafka_config(), settings.connect_seconds
    async with connected_topics(kafka, seconds) as topics:
        is_created = await topics.create(name, **asked)
    await check_intake_topic(TopicIntakeConfig(kafka=kafka, topic=name, connect_seconds=seconds))
    return is_created


def _assignment(text: str) -> tuple[str, str]:
    name, is_there, value = text.partition("=")
    if not (name and is_there):
        raise SettingError("--set", text, "NAME=VALUE, such as min.insync.replicas=2")
    if name == "cleanup.policy" and "compact" in value:
        raise SettingError("--set", text, "cleanup.policy=delete: each record is an order")
    return name.strip(), value.strip()
