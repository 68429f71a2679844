"""The options of a reader."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from chain_kernel.clients.kafka_config import KafkaConfig
from chain_kernel.errors import SettingError
from chain_kernel.limits import CHAIN_ID_MAX, ID_MAX
from chain_verifier.config import TopicSource
from chain_verifier.places import checked_url, is_url

if TYPE_CHECKING:
    from collections.abc import Mapping

_PARTITION_ROWS: Final = 1_000_000
"""Rows of a task: few seconds of work, and what a failed task repeats."""

_SOURCES: Final = "database, topic, topic:NAME or archive:PLACE"
_RANGE: Final = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10}))?")
_KAFKA: Final = "kafka."
_KNOWN: Final = frozenset(
    {
        "source", "url", "kafka", "path", "chains", "start", "until", "partitionrows", "linked",
        "maxrowspertrigger",
    }
)  # fmt: skip


class ChainOptions(Struct, frozen=True, kw_only=True):
    """Options of a source."""

    source: str
    """`database`, `topic`, `topic:NAME` or `archive:PLACE`."""
    url: str
    """The database: a login that is a member of `auditor` is enough."""
    kafka: KafkaConfig | None
    chains: tuple[int, ...] | None
    """None: all that there are."""
    start: int
    """Rows after this id."""
    until: int
    """Rows up to this id."""
    partition_rows: int
    trigger_rows: int | None
    """At most so many rows in one batch of a stream; None: all that there are."""
    is_linked: bool
    """True: rows of a database that do not follow each other are refused, as for a replay. A
    verification reads them, to report them."""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> ChainOptions:
        """Return the options `given`, whose names Spark compares in any case.

        Raises SettingError for one that is missing, unknown or no number.
        """
        options = {name.lower(): value for name, value in given.items()}
        kafka = {name: text for name, text in options.items() if name.startswith(_KAFKA)}
        if unknown := sorted(options.keys() - _KNOWN - kafka.keys()):
            expected = (
                "source, url, kafka, kafka.FIELD, chains, start, until, partitionRows, linked, "
                "maxRowsPerTrigger"
            )
            raise SettingError("option", unknown[0], expected)
        chains = options.get("chains") or options.get("path") or "all"
        found = cls(
            source=options.get("source", "database"),
            url=options.get("url", ""),
            kafka=_kafka_of(options.get("kafka"), kafka),
            chains=None if chains == "all" else tuple(chain_numbers(chains)),
            start=_number(options, "start", 0),
            until=_number(options, "until", ID_MAX),
            partition_rows=max(_number(options, "partitionrows", _PARTITION_ROWS), 1),
            trigger_rows=_number(options, "maxrowspertrigger", 0) or None,
            is_linked=_flag(options, "linked"),
        )
        found._require_place()
        return found

    def _require_place(self) -> None:
        kind, colon, name = self.source.partition(":")
        fits = {"database": not colon, "topic": bool(colon) == bool(name), "archive": bool(name)}
        if not fits.get(kind):
            raise SettingError("source", self.source, _SOURCES)
        if kind == "archive" and is_url(name):
            checked_url("source", name)
        if kind != "database" and self.is_linked:
            raise SettingError("linked", "true", "false: only rows of a database are compared")
        if kind == "database" and not self.url:
            raise SettingError("url", None, "the database, as postgresql://HOST/NAME")
        if kind == "topic" and self.kafka is None:
            raise SettingError("kafka", None, "the bootstrap servers, host:port,host:port")
        if kind == "topic" and self.chains is None:
            raise SettingError("chains", None, "the chains whose topics are read, such as 1,4-6")

    @property
    def kind(self) -> str:
        """Which kind of source it is."""
        return self.source.partition(":")[0]

    @property
    def folder(self) -> str:
        """The folder or URL of an archive."""
        return self.source.partition(":")[2]

    @property
    def topic(self) -> TopicSource:
        """The topic as a verification reads it."""
        return TopicSource(kafka=self.kafka or "", topic=self.source.partition(":")[2] or None)


def chain_numbers(text: str) -> list[int]:
    """Return the chains that `text` names, such as `1,4-6`. Raises SettingError."""
    found = set[int]()
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not 0 < first <= last <= CHAIN_ID_MAX:
            raise SettingError("chains", text, "numbers and ranges such as 1,4-6, or all")
        found.update(range(first, last + 1))
    return sorted(found)


def _kafka_of(servers: str | None, options: Mapping[str, str]) -> KafkaConfig | None:
    """Return where the topics are: options `kafka.FIELD` are the other fields of KafkaConfig."""
    if not servers:
        return None
    fields = {name.removeprefix(_KAFKA): text for name, text in options.items()}
    try:
        return msgspec.convert({"bootstrap_servers": servers, **fields}, KafkaConfig, strict=False)
    except msgspec.ValidationError as error:
        raise SettingError("kafka", servers, f"fields of a KafkaConfig ({error})") from error


def _flag(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name, "false").lower()
    if text not in ("true", "false"):
        raise SettingError(name, text, "true or false")
    return text == "true"


def _number(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name, str(default))
    if not (text.isascii() and text.isdigit() and int(text) <= ID_MAX):
        raise SettingError(name, text, f"a whole number from 0 to {ID_MAX}")
    return int(text)
