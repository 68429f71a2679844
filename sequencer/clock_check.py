"""Whether this machine's clock can be right: a wrong one marks a chain for good.

`committed_at` never falls along a chain, and ids of the strategy "time" never fall at all: both
stay where a clock that ran ahead has put them, however soon it is set right. So a clock that is
years ahead stamps nothing. One that is behind does no such harm.
"""

from __future__ import annotations

import logging
from typing import Final

from orderchain.errors import ClockError
from orderchain.limits import ID_MAX

_log = logging.getLogger(__name__)

_DAY_NS: Final = 24 * 3600 * 10**9

_TOLD_AHEAD_NS: Final = _DAY_NS
"""Beyond this no time zone explains it."""

_AHEAD_NS_MAX: Final = 365 * _DAY_NS
"""Beyond this the chain's times would be of no use for years."""

_EXPECTED: Final = "at most 365 days (the chain's times, and time ids, would stay there for good)"


class ClockWatch:
    """Holds the wall clock against the database's, and against one that cannot jump.

    A machine of values; the caller brings the times. It warns once, and again after the clock was
    right in between.
    """

    def __init__(self) -> None:
        self._base_ns: int | None = None
        self._is_told = False

    def check_beside(self, wall_ns: int, database_us: int) -> None:
        """Raise ClockError where it is years ahead of the database's clock, warn at a day."""
        self.warn_beside(wall_ns, database_us)
        _refuse(wall_ns - database_us * 1_000, "of the database's")

    def warn_beside(self, wall_ns: int, database_us: int) -> None:
        """Log where it is ahead of the database's clock: one of the two is wrong."""
        ahead_ns = wall_ns - database_us * 1_000
        if ahead_ns <= _TOLD_AHEAD_NS:
            self._is_told = False
        elif not self._is_told:
            self._is_told = True
            _log.warning(
                "the clock of this machine is %d days ahead of the database's: the chain's times "
                "stay where it puts them",
                ahead_ns // _DAY_NS,
            )

    def check_jump(self, wall_ns: int, monotonic_ns: int) -> None:
        """Raise ClockError where it has jumped years ahead since the first call, or where no row
        can hold its time. To be asked before each batch is stamped.
        """
        if self._base_ns is None:
            self._base_ns = wall_ns - monotonic_ns
        _refuse(wall_ns - monotonic_ns - self._base_ns, "of where it was")
        if not 0 <= wall_ns <= ID_MAX:
            raise ClockError("clock", f"{wall_ns} ns since 1970", f"0 to {ID_MAX}")


def _refuse(ahead_ns: int, what: str) -> None:
    if ahead_ns > _AHEAD_NS_MAX:
        raise ClockError("clock", f"{ahead_ns // _DAY_NS} days ahead {what}", _EXPECTED)
