"""Metrics and health of the parts of the engine, as an ASGI application without a framework.

`app = Monitor(sequencer, receiver)` serves `/metrics` for Prometheus, `/livez`, and `/readyz`,
which is 503 with one line of why. Mount it in your own application, or run it with an ASGI server:
who reaches that server can keep your event loop busy, so it belongs on loopback, or a proxy stands
in front of it.
(`--http` of the commands serves it from a process of its own.) It needs the extra `monitoring`; a
part needs nothing to be looked at.

A process that holds many orders also sets Python's garbage collector here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import Field, field, fields
from itertools import accumulate
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Protocol, TypeVar

from msgspec import Struct

from chain_kernel.doors import needs_extra

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Iterator, MutableMapping

    from _typeshed import DataclassInstance
    from prometheus_client.metrics_core import Metric as Family

    AsgiMessage = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[AsgiMessage]]
    Send = Callable[[AsgiMessage], Awaitable[None]]
    AsgiApp = Callable[[AsgiMessage, Receive, Send], Awaitable[None]]


_Stats_contra = TypeVar("_Stats_contra", contravariant=True)

MetricKind = Literal["counter", "gauge", "histogram"]

BUCKET_SECONDS: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
"""Upper bounds of the buckets of latencies: a commit takes 0.5 to 50 ms, a deadline 10 s."""


class Histogram(Struct, frozen=True):
    """A histogram: how many values were at most how large."""

    bounds: tuple[float, ...] = BUCKET_SECONDS
    """The upper bounds of the buckets, inclusive."""
    counts: tuple[int, ...] = ()
    """Per bucket, not cumulated, and one more for all larger values; empty where none is known."""
    sum: float = 0.0


class Buckets:
    """Counts values for a histogram: one costs about half a microsecond."""

    def __init__(self, bounds: tuple[float, ...] = BUCKET_SECONDS) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Count one more value, which is finite."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    @property
    def histogram(self) -> Histogram:
        """The counts at this instant."""
        return Histogram(self._bounds, tuple(self._counts), self._sum)


class Sample(Struct, frozen=True):
    """One value of one metric at one instant."""

    name: str
    """By Prometheus's conventions: `_total` for counters, `_seconds` for times."""
    kind: MetricKind
    value: float | bool | Histogram
    help: str
    labels: Mapping[str, str]


class Metric(Struct, Generic[_Stats_contra], frozen=True):
    """A metric of a part, read from what the part's `stats` returns."""

    name: str
    kind: MetricKind
    help: str
    read: Callable[[_Stats_contra], float | Histogram | Mapping[str, int]]
    """A mapping has a value for each value of `label`."""
    label: str = ""

    def samples(self, stats: _Stats_contra, labels: Mapping[str, str]) -> Iterator[Sample]:
        """Yield the samples of one `stats`."""
        value = self.read(stats)
        values = value.items() if isinstance(value, Mapping) else [("", value)]
        for each, number in values:
            own = {self.label: each} if self.label else {}
            yield Sample(self.name, self.kind, number, self.help, {**labels, **own})


def counter_field(text: str, label: str = "", *, name: str = "") -> Any:  # noqa: ANN401 - a number
    """Return a field of a dataclass of counters; with `label` it counts for each of its values.

    The metric has the name of the field, or `name`.
    """
    about = {"kind": "counter", "help": text, "label": label, "name": name}
    if label:
        return field(default_factory=Counter, metadata=about)
    return field(default=0, metadata=about)


def gauge_field(
    text: str,
    *,
    name: str = "",
    kind: MetricKind = "gauge",
    read: Callable[[Any], float | Histogram] | None = None,
) -> Any:  # noqa: ANN401 - of any type
    """Return a field of a dataclass of stats that is a metric, too, by its own name or `name`.

    `read` returns the metric's value for that of the field; it may be a histogram of this `kind`.
    """
    return field(metadata={"kind": kind, "help": text, "name": name, "read": read})


def metrics(prefix: str, stats: type[DataclassInstance]) -> tuple[Metric[Any], ...]:
    """Return a metric `prefix`_NAME for each field that the two functions above made."""
    return tuple(_metric(prefix, each) for each in fields(stats) if "help" in each.metadata)


def _metric(prefix: str, of: Field[Any]) -> Metric[Any]:
    about, value = of.metadata, attrgetter(of.name)
    name = f"{prefix}_{about['name'] or of.name}"
    if about["kind"] == "counter":
        return Metric(f"{name}_total", "counter", about["help"], value, about["label"])
    read = about["read"]
    shown = value if read is None else lambda stats: read(value(stats))
    return Metric(name, about["kind"], about["help"], shown)


class MonitorAnswer(Struct, frozen=True):
    """The answer of `/metrics`."""

    media_type: str
    body: bytes


def metrics_of(samples: Iterable[Sample]) -> MonitorAnswer:
    """Return samples as Prometheus reads them. Needs the extra `monitoring`."""
    families: dict[str, list[Sample]] = {}
    for sample in samples:
        families.setdefault(sample.name, []).append(sample)
    from prometheus_client import generate_latest

    return MonitorAnswer(_TEXT, generate_latest(_Collector(families.values())))


class MonitoredPart(Protocol):
    """A part that a Monitor looks at: a sequencer, a receiver, a relay, or one of yours."""

    def samples(self) -> Iterable[Sample]:
        """Return the metrics at this instant; none before the start. Must not raise or wait."""
        ...

    def why_not_ready(self) -> str | None:
        """Return in one line why the part does not do its work now; None when it does."""
        ...


class LagLimits(Struct, frozen=True, kw_only=True):
    """Up to which lag a part counts as ready.

    A burst is many ids for a short time, a part that hangs may be a single id for a long one: so
    the first limit takes both, the second one the time alone.
    """

    ids: int = 10_000
    seconds: float = 5.0
    """A lag of more than `ids` for longer than this is too much."""
    seconds_max: float = 60.0
    """A lag of any size for longer than this is too much."""

    def are_exceeded(self, ids: int, seconds: float) -> bool:
        """Return whether a lag of `ids` that has lasted for `seconds` is too much."""
        return seconds > self.seconds_max or (ids > self.ids and seconds > self.seconds)


LAG_LIMITS: Final = LagLimits()

READY: Final = Metric[bool](
    "orderchain_ready", "gauge", "1 when every part of this process does its work, else 0.", float
)

METRICS_AGE: Final = Metric[float](
    "orderchain_metrics_age_seconds", "gauge", "Seconds since these metrics were taken.", float
)
"""Metrics that the process behind `--http` adds to what is reported to it."""


class Monitor:
    """An ASGI application over the parts of one process. They may be added while it runs."""

    def __init__(self, *parts: MonitoredPart) -> None:
        """Look at `parts`.

        Raises:
            ModuleNotFoundError: the extra `monitoring` is not installed.
        """
        with needs_extra("monitoring", "Monitor"):
            import prometheus_client  # noqa: F401 - if it is missing, that shows here

        self._parts = list(parts)

    def add(self, part: MonitoredPart) -> None:
        """Look at `part` too."""
        self._parts.append(part)

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of all parts, and whether they are ready."""
        for part in self._parts:
            yield from part.samples()
        yield from READY.samples(not self.why_not_ready(), {})

    def why_not_ready(self) -> str | None:
        """Return in one line why a part does not do its work now; None when all do."""
        if not self._parts:
            return "not started yet"
        reasons = [reason for part in self._parts if (reason := part.why_not_ready())]
        return "; ".join(reasons) or None

    def metrics(self) -> MonitorAnswer:
        """Return what `/metrics` answers."""
        return metrics_of(self.samples())

    async def __call__(self, scope: AsgiMessage, _: Receive, send: Send) -> None:
        """Answer a GET of `/metrics`, `/livez` or `/readyz`, below where it is mounted."""

        async def metrics() -> MonitorAnswer:
            return self.metrics()

        await respond(scope, send, None, self.why_not_ready(), metrics)


async def respond(
    scope: AsgiMessage,
    send: Send,
    why_not_live: str | None,
    why_not_ready: str | None,
    metrics: Callable[[], Awaitable[MonitorAnswer]],
) -> None:
    """Answer a request for one of the three pages."""
    if scope["type"] != "http":
        raise ValueError(f"Monitor answers HTTP, not {scope['type']}")
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    allowed: list[tuple[bytes, bytes]] = []
    if path not in ("/metrics", "/livez", "/readyz"):
        status, answer = _NOT_FOUND, _line("expected /metrics, /livez or /readyz")
    elif scope["method"] not in ("GET", "HEAD"):
        status, answer, allowed = _NOT_ALLOWED, _line("expected GET"), [(b"allow", b"GET, HEAD")]
    elif path == "/metrics":
        status, answer = _OK, await metrics()
    elif why_not_live is not None:
        status, answer = _UNAVAILABLE, _line(why_not_live)
    elif path == "/readyz" and why_not_ready is not None:
        status, answer = _UNAVAILABLE, _line(why_not_ready)
    else:
        status, answer = _OK, _line("ok")
    headers = [
        (b"content-type", answer.media_type.encode()),
        (b"content-length", str(len(answer.body)).encode()),
        *allowed,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    content = b"" if scope["method"] == "HEAD" else answer.body
    await send({"type": "http.response.body", "body": content})


def _line(text: str) -> MonitorAnswer:
    return MonitorAnswer(_TEXT, f"{text}\n".encode())


_OK: Final = 200
_NOT_FOUND: Final = 404
_NOT_ALLOWED: Final = 405
_UNAVAILABLE: Final = 503


_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"


class _Collector:
    """Turns samples into the metrics of prometheus-client."""

    def __init__(self, families: Iterable[list[Sample]]) -> None:
        self._families = families

    def collect(self) -> Iterator[Family]:
        """Yield the metrics."""
        from prometheus_client.metrics_core import Metric as Family

        for samples in self._families:
            name, kind = samples[0].name, samples[0].kind
            name = name.removesuffix("_total") if kind == "counter" else name
            family = Family(name, samples[0].help, kind)
            for sample in samples:
                _add(family, sample)
            yield family


def _add(family: Family, sample: Sample) -> None:
    labels, value = dict(sample.labels), sample.value
    if not isinstance(value, Histogram):
        family.add_sample(sample.name, labels, value)
        return
    bounds = [*value.bounds, inf]
    counts = accumulate(value.counts or [0] * len(bounds))
    for bound, count in zip(bounds, counts, strict=True):
        le = "+Inf" if bound == inf else str(bound)
        family.add_sample(f"{sample.name}_bucket", {**labels, "le": le}, count)
    family.add_sample(f"{sample.name}_count", labels, sum(value.counts))
    family.add_sample(f"{sample.name}_sum", labels, value.sum)
