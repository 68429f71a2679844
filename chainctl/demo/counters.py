"""Counters that add up over the lives of a process."""

from __future__ import annotations

from typing import Self

from msgspec import Struct


class Counters(Struct, kw_only=True):
    """Fields that are all counts."""

    def __add__(self, other: Self) -> Self:
        """Return the sums of both, field by field."""
        names = self.__struct_fields__
        return type(self)(**{name: getattr(self, name) + getattr(other, name) for name in names})
