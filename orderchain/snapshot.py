"""A snapshot: what a service knows at one place of a chain."""

from __future__ import annotations

from msgspec import Struct

from orderchain.mark import Mark


class Snapshot(Struct, frozen=True, kw_only=True):
    """A service's state behind a row. With the rows behind it the state of now can be had."""

    mark: Mark
    """The end of the last run that is in the state (`Run.end`)."""
    state: bytes
    """The service's own; the engine never looks inside."""
