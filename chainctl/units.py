"""Spans of time and sizes as people write them: `90s`, `5m`, `500MB`."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

import click

_INTEGER: Final = re.compile(r"-?[0-9]{1,20}")

_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_SPAN: Final = re.compile(r"(?P<number>[0-9]+(\.[0-9]+)?)(?P<unit>ms|s|m|h|d)?")
_SPAN_SECONDS_MAX: Final = 10_000 * 86_400.0

_BYTES: Final = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZE: Final = re.compile(r"(?P<number>[0-9]+(\.[0-9]+)?)\s*(?P<unit>[KMGT]?B)?", re.IGNORECASE)


class Integer(click.IntRange):
    """A whole number within bounds, in the digits 0 to 9."""

    name = "integer"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Return the number that `value` is."""
        if _INTEGER.fullmatch(str(value).strip()) is None:
            self.fail(f"{value!r} is not a valid integer.", param, ctx)
        return super().convert(int(str(value)), param, ctx)

    def _describe_range(self) -> str:
        """Nothing: in a help, bounds such as 2^63 - 1 say less than the refusal."""
        return ""


class Span(click.ParamType):  # type: ignore[type-arg] # generic only in new versions
    """A time span with a unit, in seconds: above 0 unless `may_be_zero`, up to `maximum` seconds.

    A number alone has the `unit` given, which is seconds unless the option's name says otherwise.
    """

    name = "span"

    def __init__(
        self, maximum: float = _SPAN_SECONDS_MAX, unit: str = "s", *, may_be_zero: bool = False
    ) -> None:
        self._maximum = maximum
        self._unit = unit
        self._may_be_zero = may_be_zero

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the seconds of `value`."""
        found = _SPAN.fullmatch(str(value).strip())
        seconds = float(found["number"]) * _SECONDS[found["unit"] or self._unit] if found else -1.0
        if not 0 <= seconds <= self._maximum or not (seconds or self._may_be_zero):
            up_to = shown_span(self._maximum)
            expected = f"a time span such as 90s, 5m, 2h, 1d; up to {up_to}"
            self.fail(f"{value!r}, expected {expected}", param, ctx)
        return seconds


class Size(click.ParamType):  # type: ignore[type-arg] # generic only in new versions
    """A number of bytes with a unit, from `minimum` to `maximum` bytes."""

    name = "size"

    def __init__(self, minimum: int = 1, maximum: int = 2**62) -> None:
        self._minimum = minimum
        self._maximum = maximum

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Return the bytes of `value`."""
        found = _SIZE.fullmatch(str(value).strip())
        size = (
            int(Decimal(found["number"]) * _BYTES[(found["unit"] or "").upper()]) if found else -1
        )
        if not self._minimum <= size <= self._maximum:
            expected = f"a size such as 500MB, 20GB; {self._minimum} to {self._maximum} bytes"
            self.fail(f"{value!r}, expected {expected}", param, ctx)
        return size


def shown_age(seconds: float) -> str:
    """Return about how long `seconds` are, for people: `45 s`, `12 min`, `30 h`, `9 days`."""
    for unit, length, most in (("s", 1, 120), ("min", 60, 7_200), ("h", 3_600, 172_800)):
        if seconds < most:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86_400:.0f} days"


def shown_span(seconds: float) -> str:
    """Return `seconds` in the largest unit in which it is a whole number: `90s`, `2h`, `500ms`."""
    milliseconds = round(seconds * 1_000)
    for unit, length in reversed(_SECONDS.items()):
        count, rest = divmod(milliseconds, round(length * 1_000))
        if count and not rest and milliseconds / 1_000 == seconds:
            return f"{count}{unit}"
    return f"{seconds:g}s"
