"""The verified mark of a chain: `chainctl verify` begins after it, and moves it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from chain_kernel.errors import RefusedError, RetryError, SchemaError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chain_verifier.config import ContradictedMark
    from chain_verifier.report import Report
    from chain_verifier.verified_mark import VerifiedExtent
    from chainctl.settings import Settings


class Beginning(NamedTuple):
    """The ids between which to verify."""

    start: int
    head: int | None
    contradicted: ContradictedMark | None = None
    """A verified mark that no longer holds."""


def beginning_of(
    settings: Settings, chain_id: int, start: int | None, head: int | None, *, is_marked: bool,
    extent: VerifiedExtent | None = None,
) -> Beginning:  # fmt: skip
    """Return the beginning: at `start`, after the mark if it `is_marked`, or after the archive.

    A mark also shows a head that the chain had, whatever the database reports now. Where one is
    contradicted, everything up to there must be verified again. `extent` may have been read.
    """
    from chain_kernel.clients.database_config import DatabaseConfig
    from chain_verifier.verified_mark import read_extent

    if is_marked:
        DatabaseConfig.of(_mark_dsn(settings)).for_writing()  # before work whose mark is refused
    try:
        extent = extent or read_extent(settings.audit_dsn(), chain_id, settings.connect_seconds)
    except (RefusedError, RetryError) as error:
        if is_marked or isinstance(error, SchemaError):
            raise  # before Spark starts, which takes its time
        return Beginning(start or 0, head)  # the verifier meets the same, and reports it
    if is_marked or extent.contradicted is not None:
        head = max(extent.known_head, head or 0)
    if start is None:
        start = extent.start if is_marked else extent.boundary_id
    return Beginning(start, head, extent.contradicted)


def extents_of(settings: Settings, chains: Sequence[int]) -> dict[int, VerifiedExtent]:
    """Return the verified extents of many chains, over one connection; none if that fails."""
    from chain_verifier.verified_mark import read_extents

    try:
        return read_extents(settings.audit_dsn(), chains, settings.connect_seconds)
    except (RefusedError, RetryError):
        return {}  # the look at a single chain meets the same, and reports it


def _mark_dsn(settings: Settings) -> str:
    """Return the address of the primary, which stores a mark. Raises SettingError."""
    return settings.database_dsn() if settings.database else settings.audit_dsn()


def move_mark(settings: Settings, report: Report, actor: str) -> str:
    """Move the mark if the report is whole, and return the message about it."""
    from chain_verifier.report import Verdict
    from chain_verifier.verified_mark import set_mark

    if report.verdict is not Verdict.COMPLETE or report.head is None:
        return f"the verified mark of chain {report.chain_id} stays: not everything is whole"
    has_moved = set_mark(
        settings.audit_dsn(),
        _mark_dsn(settings),
        report.chain_id,
        after_id=report.start,
        until_id=report.head,
        seal=bytes.fromhex(report.head_seal or ""),
        verified_by=actor,
        connect_seconds=settings.connect_seconds,
    )
    moved = f"is at {report.head}, by {actor}"
    if not has_moved:
        is_new = report.head > report.start
        moved = f"stays: {'the batch was changed meanwhile' if is_new else 'there is nothing new'}"
    return f"the verified mark of chain {report.chain_id} {moved}"
