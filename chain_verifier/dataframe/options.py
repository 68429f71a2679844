"""What a reader asks for: its options, narrowed by the filters of the query."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from chain_kernel.clients.kafka_config import KafkaConfig
from chain_kernel.clock import ns_of
from chain_kernel.errors import SettingError
from chain_kernel.limits import CHAIN_ID_MAX, ID_MAX
from chain_verifier.config import TopicSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_PARTITION_ROWS: Final = 1_000_000
"""Rows of a task: few seconds of work, and what a failed task repeats."""

_TIME_MIN: Final = -(2**63)
_TIME_MAX: Final = 2**63 - 1

_SOURCES: Final = "database, topic, topic:NAME or archive:PLACE"
_RANGE: Final = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10}))?")
_COMPARISONS: Final = (
    "EqualTo", "GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual",
)  # fmt: skip
"""Spark's filters that bound a column."""
_KAFKA: Final = "kafka."
_KNOWN: Final = frozenset(
    {"source", "url", "kafka", "path", "chains", "start", "until", "partitionrows"}
)


class ChainOptions(Struct, frozen=True, kw_only=True):
    """What is read."""

    source: str
    """`database`, `topic`, `topic:NAME` or `archive:PLACE`."""
    url: str
    """The database: a login that is a member of `auditor` is enough."""
    kafka: KafkaConfig | None
    chains: tuple[int, ...] | None
    """None: all that there are."""
    is_filtered: bool = False
    """Whether a filter of the query has named them: one that does not exist has no rows."""
    start: int
    """Rows after this id."""
    until: int
    """Rows up to this id."""
    partition_rows: int
    first_time_ns: int = _TIME_MIN
    last_time_ns: int = _TIME_MAX

    @classmethod
    def of(cls, given: Mapping[str, str]) -> ChainOptions:
        """Return the options `given`, whose names Spark compares in any case.

        Raises SettingError for one that is missing, unknown or no number.
        """
        options = {name.lower(): value for name, value in given.items()}
        kafka = {name: text for name, text in options.items() if name.startswith(_KAFKA)}
        if unknown := sorted(options.keys() - _KNOWN - kafka.keys()):
            expected = "source, url, kafka, kafka.FIELD, chains, start, until, partitionRows"
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
        )
        found._require_place()
        return found

    def _require_place(self) -> None:
        kind, colon, name = self.source.partition(":")
        fits = {"database": not colon, "topic": bool(colon) == bool(name), "archive": bool(name)}
        if not fits.get(kind):
            raise SettingError("source", self.source, _SOURCES)
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

    def narrowed(self, filters: Iterable[Any]) -> ChainOptions:
        """Return the options narrowed by filters of Spark, which Spark applies once more.

        Those on `chain_id`, `id`, `event_time` and `event_time_ns` with a constant narrow what is
        read; others do not.
        """
        found = self
        for each in filters:
            found = found._narrowed(each)
        return found

    def _narrowed(self, given: Any) -> ChainOptions:  # noqa: ANN401 - a filter of Spark
        name, kind = ".".join(getattr(given, "attribute", ())), type(given).__name__
        value: Any = getattr(given, "value", None)
        # No row equals NULL: a filter of nothing else is left to Spark.
        values = [one for one in (value if kind == "In" else (value,)) if one is not None]
        if not values:
            return self
        if name == "chain_id" and kind in ("EqualTo", "In"):
            asked = set(values)
            known = asked if self.chains is None else asked & set(self.chains)
            return replace(self, chains=tuple(sorted(known)), is_filtered=True)
        if kind == "In":
            low, high = min(values), max(values)
        elif kind in _COMPARISONS:
            low = None if kind.startswith("Less") else value
            high = None if kind.startswith("Greater") else value
        else:
            return self
        if name == "id":
            # `start` is the id before the first row.
            first = self.start if low is None else max(self.start, low - (kind != "GreaterThan"))
            last = self.until if high is None else min(self.until, high)
            return replace(self, start=max(first, 0), until=last)
        if name not in ("event_time", "event_time_ns"):
            return self
        # A microsecond of Spark has a thousand of ours.
        begin = self.first_time_ns if low is None else max(self.first_time_ns, _ns(low))
        end = self.last_time_ns if high is None else min(self.last_time_ns, _ns(high, ending=True))
        return replace(self, first_time_ns=begin, last_time_ns=end)

    @property
    def times_ns(self) -> tuple[int | None, int | None]:
        """The first and the last time of rows that are looked for; None twice: any."""
        times = (self.first_time_ns, self.last_time_ns)
        return (None, None) if times == (_TIME_MIN, _TIME_MAX) else times


def _ns(time: int | datetime, *, ending: bool = False) -> int:
    if isinstance(time, int):
        return time
    aware = time if time.tzinfo else time.astimezone(UTC)
    return min(max(ns_of(aware) + (999 if ending else 0), _TIME_MIN), _TIME_MAX)


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


def _number(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name, str(default))
    if not (text.isascii() and text.isdigit() and int(text) <= ID_MAX):
        raise SettingError(name, text, f"a whole number from 0 to {ID_MAX}")
    return int(text)
