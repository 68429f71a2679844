"""A halt outlives the process: while it is stored, no receiver of that name starts."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from matcher_receiver.waits import AWAY
from orderchain.errors import SettingError
from orderchain.ports import ReceiverRecords

if TYPE_CHECKING:
    from orderchain.errors import HaltError
    from orderchain.ports import CheckpointStore, HeadReports


_log = logging.getLogger(__name__)

TRIES: Final = 3
"""The primary has just answered, or there would be no halt: if it does not accept this in so many
tries, the caller must learn of the halt first."""

AGAIN_SECONDS: Final = 0.2


def records_of(
    checkpoints: CheckpointStore | None, reports: HeadReports | None
) -> ReceiverRecords | None:
    """Return where halts and gaps are stored, None if nowhere. Raises SettingError."""
    if not isinstance(checkpoints, ReceiverRecords):
        return reports
    if reports is not None:
        expected = "none, since the checkpoints report to that database already"
        raise SettingError("reports", type(reports).__name__, expected)
    return checkpoints


async def store_halt(records: ReceiverRecords, error: HaltError, at_id: int) -> bool:
    """Store the halt, and return whether that was done; if not, `error` gets a note of it."""
    failure: Exception | None = None
    for _ in range(TRIES):
        try:
            await records.record_halt(error, at_id)
        except AWAY as found:
            failure = found
            await asyncio.sleep(AGAIN_SECONDS)
        else:
            return True
    _log.error("the halt could not be stored: %s", failure)
    error.add_note(f"the halt could not be stored: {failure}")
    return False
