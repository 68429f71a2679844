"""What requests give as text: checked, and refused with the field's name. All raise Refusal."""

from __future__ import annotations

from uuid import UUID

from outbox.limits import NAME_CHARS_MAX
from outbox.service.bodies import PAGE_ROWS_MAX
from outbox.service.refusals import Refusal
from outbox.statuses import Status


def uuids_of(told: list[str]) -> list[UUID]:
    """Return the ids that a body names, each once."""
    return list(dict.fromkeys(uuid_of("message_ids", each) for each in told))


def uuid_or_none(told: str | None) -> UUID | None:
    """Return the id that a body gives, if it gives one."""
    return None if told is None else uuid_of("message_id", told)


def uuid_of(field: str, told: str) -> UUID:
    """Return a UUID in its one usual form."""
    try:
        found = UUID(told)
    except ValueError:
        found = None
    if found is None or str(found) != told:
        raise Refusal(400, "invalid", field, told, "a UUID, in lower case")
    return found


def plain_text(field: str, told: str) -> str:
    """Return a name of a destination or a consumer; empty is allowed."""
    if len(told) > NAME_CHARS_MAX or not told.isascii() or not told.isprintable():
        expected = f"at most {NAME_CHARS_MAX} printable ASCII characters"
        raise Refusal(400, "invalid", field, told, expected)
    return told


def status_of(told: str) -> Status:
    """Return a status by its name."""
    known = {status.name.lower(): status for status in Status}
    if told not in known:
        raise Refusal(400, "invalid", "status", told, f"one of {', '.join(known)}")
    return known[told]


def limit_of(told: str) -> int:
    """Return how many rows a page may have."""
    number = int(told) if told.isascii() and told.isdecimal() and len(told) < 8 else 0
    if not 1 <= number <= PAGE_ROWS_MAX:
        raise Refusal(400, "invalid", "limit", told, f"1 to {PAGE_ROWS_MAX}")
    return number
