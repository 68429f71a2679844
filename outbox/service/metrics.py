"""What an instance counts, in the text form that Prometheus reads."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from _typeshed import DataclassInstance

    from outbox.acts import Unfinished

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_PREFIX: Final = "orderchain_outbox"

_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def render(
    counters: Mapping[str, DataclassInstance],
    refusals: Mapping[str, int],
    waiting: int,
    unfinished: Sequence[Unfinished] | None,
    now: float,
) -> str:
    """Return the page: counters by the part that counts, then what is in the database.

    `unfinished` is None while the database does not answer: what this process counts is returned
    then, too. `now` is in seconds since 1970.
    """
    lines: list[str] = []
    for part, stats in counters.items():
        lines += _counters(f"{_PREFIX}_{part}", stats)
    lines += _counter(f"{_PREFIX}_refusals_total", refusals, "error")
    lines += _gauge(f"{_PREFIX}_waiting", "Messages in memory, to be sent.", {"": float(waiting)})
    up = {"": 0.0 if unfinished is None else 1.0}
    lines += _gauge(f"{_PREFIX}_database_up", "Whether the database has answered.", up)
    if unfinished is not None:
        labels = {
            _labels(destination=each.destination, status=each.status): each for each in unfinished
        }
        meaning = "Unfinished deliveries, of all instances."
        lines += _gauge(
            f"{_PREFIX}_deliveries", meaning, {at: each.deliveries for at, each in labels.items()}
        )
        meaning = "Age of the oldest message of them."
        lines += _gauge(
            f"{_PREFIX}_oldest_seconds",
            meaning,
            {at: each.oldest_seconds(now) for at, each in labels.items()},
        )
    return "\n".join(lines) + "\n"


def _counters(prefix: str, stats: DataclassInstance) -> Iterator[str]:
    for field in fields(stats):
        value = getattr(stats, field.name)
        by_reason = value if isinstance(value, Counter) else {None: value}
        yield from _counter(f"{prefix}_{field.name}_total", by_reason, "reason")


def _counter(name: str, values: Mapping[str, int] | Mapping[None, int], label: str) -> list[str]:
    samples = [
        f"{name}{'' if each is None else _labels(**{label: each})} {count}"
        for each, count in sorted(values.items(), key=lambda item: str(item[0]))
    ]
    return [f"# TYPE {name} counter", *samples]


def _gauge(name: str, meaning: str, values: Mapping[str, float]) -> list[str]:
    samples = [f"{name}{labels} {value:g}" for labels, value in values.items()]
    return [f"# HELP {name} {meaning}", f"# TYPE {name} gauge", *samples]


def _labels(**values: str) -> str:
    pairs = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in values.items())
    return f"{{{pairs}}}"
