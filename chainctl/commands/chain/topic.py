"""`chainctl topic create`: makes the topic from which a sequencer takes orders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec import Struct

from chainctl.commands.chain.chains import check_topic_name, connected_topics
from chainctl.event_loop import run_async
from chainctl.options import Integer, SuggestingGroup, json_option, uses_settings
from chainctl.output import data_json, talk
from chainctl.units import Span
from orderchain.errors import SettingError, TopicError
from orderchain.text import counted

if TYPE_CHECKING:
    from chainctl.settings import Settings
    from orderchain.clients.topics import TopicDescription

PARTITIONS_MAX: Final = 10_000
"""An intake reads all of them with one consumer: far above what that is good for."""

REPLICAS_MAX: Final = 2**15 - 1
"""Kafka's own bound."""

_RETENTION_MS: Final = "retention.ms"
_SETTINGS: Final[Mapping[str, str]] = {
    # Each record is an order. A compacted topic keeps the last one of a key alone.
    "cleanup.policy": "delete",
    # Two weeks: records wait here while no sequencer runs, and one that was deleted stops the
    # intake forever.
    _RETENTION_MS: str(14 * 24 * 3_600 * 1_000),
}

_LOSS: Final = "an order can be lost before a sequencer has taken it"


class TopicPlan(Struct, frozen=True, kw_only=True):
    """The topic that is asked for. None: as the brokers do by default, or as it is."""

    name: str
    partitions: int | None
    replicas: int | None
    settings: Mapping[str, str]
    """Those that were asked for."""


@click.group(cls=SuggestingGroup)
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
        asked[_RETENTION_MS] = str(round(retention_seconds * 1_000))
    plan = TopicPlan(
        name=check_topic_name(name, "NAME"), partitions=partitions, replicas=replicas,
        settings=asked,
    )  # fmt: skip
    _check_policy(plan.name, asked.get("cleanup.policy", "delete"))
    done = run_async(_create(settings, plan, is_dry_run=dry_run))
    what = "would be created" if dry_run else "created"
    state = what if done["topic_created"] else "is there already"
    shown = ", ".join(f"{key}={value}" for key, value in done["settings"].items())
    talk(
        f"chainctl: topic {name} {state}: {counted(done['partitions'], 'partition')}, replicas "
        f"{done['replicas'] or 'by the default of the brokers'}, {shown}"
    )
    if as_json:
        data_json(done)


def _assignment(text: str) -> tuple[str, str]:
    name, is_there, value = text.partition("=")
    if not (name and is_there):
        raise SettingError("--set", text, "NAME=VALUE, such as min.insync.replicas=2")
    return name.strip(), value.strip()


def _check_policy(name: str, policy: str) -> None:
    if "compact" in policy:
        raise TopicError(f"cleanup.policy of topic {name}", policy, "delete")


async def _create(settings: Settings, plan: TopicPlan, *, is_dry_run: bool) -> dict[str, Any]:
    from orderchain.clients.topics import durability_warning

    kafka = settings.kafka_config()
    async with connected_topics(kafka, settings.connect_seconds) as topics:
        found = await topics.described(plan.name)
        wanted = {**_SETTINGS, **plan.settings}
        is_created = not found.is_there and await topics.create(
            plan.name,
            partitions=plan.partitions or 1,
            replicas=plan.replicas,
            settings=wanted,
            is_dry_run=is_dry_run,
        )
        if is_created and is_dry_run:
            return _done(plan.name, plan.partitions or 1, plan.replicas, wanted, is_created=True)
        found = await topics.described(plan.name)
    _check(plan, found)
    if warning := durability_warning([found], _LOSS):
        talk(f"chainctl: {warning}", "warning")
    shown = {name: found.settings.get(name, "") for name in wanted}
    return _done(plan.name, found.partitions, found.replicas, shown, is_created=is_created)


def _done(
    name: str, partitions: int, replicas: int | None, settings: Mapping[str, str], *,
    is_created: bool,
) -> dict[str, Any]:  # fmt: skip
    return {
        "topic": name, "topic_created": is_created, "partitions": partitions,
        "replicas": replicas, "settings": settings,
    }  # fmt: skip


def _check(plan: TopicPlan, found: TopicDescription) -> None:
    """Raise TopicError where the topic is not as asked, or not what an intake needs."""
    from orderchain.clients.topics import certain_copies

    for what, wanted, its in (
        ("partitions", plan.partitions, found.partitions),
        ("replicas", plan.replicas, found.replicas),
        *((name, value, found.settings.get(name)) for name, value in plan.settings.items()),
    ):
        if wanted not in (None, its):
            raise TopicError(f"{what} of topic {plan.name}", its, f"{wanted}, as asked for")
    _check_policy(plan.name, found.settings.get("cleanup.policy", ""))
    if not certain_copies(found):
        minimum = found.settings.get("min.insync.replicas")
        expected = f"at most its {counted(found.replicas, 'replica')}, or no record is accepted"
        raise TopicError(f"min.insync.replicas of topic {plan.name}", minimum, expected)
