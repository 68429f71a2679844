"""Findings are counted here, and those of neighbours become one with a range. Pure.

Ids skip numbers, so two rows are neighbours only if one names the other: the `pid` of the later row
is the id of the earlier one. A finding of a row therefore comes with its pid, even if its text does
not show it. Batches are neighbours in the same way; of those with another number of rows than they
state, only empty ones become one: the figures of each of the others are of use. Memory stays
bounded, however many findings there are: one range per kind is open, and a sample is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from chain_verifier.config import FINDINGS_MAX
from chain_verifier.findings import KINDS_OF_BATCHES, KINDS_OF_ROWS, Finding, Findings, Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ALIKE: Final = ("columns", "chain_id", "until_id", "count")
"""The fields in which neighbours of one kind, from one search in one source, must be equal; but for
the `until_id` of batches, which is their end."""

ORDER: Final = ("id", "pid", "columns", "chain_id")
"""The order in which the findings of a kind of rows are taken; without a value comes first."""

_PID_HIDDEN: Final = (KINDS_OF_ROWS | KINDS_OF_BATCHES) - {
    Kind.NULL, Kind.FOREIGN_CHAIN, Kind.BEYOND_HEAD,
}  # fmt: skip


def ranged(first: Finding, last_id: int | None, singles: int) -> Finding:
    """Return `singles` findings of neighbouring rows or batches, from `first` to `last_id`, as one.

    The pid is left out where it only shows which are neighbours.
    """
    shown = replace(first, pid=None) if first.kind in _PID_HIDDEN else first
    if singles == 1:
        return shown
    if first.kind in KINDS_OF_BATCHES:
        return replace(shown, until_id=last_id, batches=singles)
    return replace(shown, last_id=last_id, rows=singles)


class _Range:
    """Neighbouring rows or batches so far."""

    def __init__(self, first: Finding) -> None:
        self._first = first
        self._last_id = _end_of(first)
        self._singles = 1
        self._expected = first.expected_count
        self._alike = _alike_of(first)

    def takes(self, finding: Finding) -> bool:
        """Return whether `finding` is of the next row or batch; then the range ends with it."""
        is_next = self._last_id is not None and finding.pid == self._last_id
        is_partly_there = finding.kind is Kind.BATCH_COUNT and finding.count != 0
        if not is_next or _alike_of(finding) != self._alike or is_partly_there:
            return False
        self._last_id = _end_of(finding)
        self._singles += 1
        if finding.expected_count is not None:
            self._expected = (self._expected or 0) + finding.expected_count
        return True

    def finding(self) -> Finding:
        """Return them as one."""
        first = replace(self._first, expected_count=self._expected)
        return ranged(first, self._last_id, self._singles)


def _end_of(finding: Finding) -> int | None:
    return finding.until_id if finding.kind in KINDS_OF_BATCHES else finding.id


def _alike_of(finding: Finding) -> tuple[object, ...]:
    names = (finding.source, finding.against)
    alike = replace(finding, until_id=None) if finding.kind in KINDS_OF_BATCHES else finding
    return (*names, *(getattr(alike, name) for name in ALIKE))


def in_ranges(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield `findings`, those of neighbouring rows or batches as one.

    Those of one kind of either must come in `ORDER`. Other kinds are passed on as they are.
    """
    at_work: dict[Kind, _Range] = {}
    for finding in findings:
        if finding.kind not in KINDS_OF_ROWS | KINDS_OF_BATCHES:
            yield finding
            continue
        before = at_work.get(finding.kind)
        if before is not None and before.takes(finding):
            continue
        at_work[finding.kind] = _Range(finding)
        if before is not None:
            yield before.finding()
    for one in at_work.values():
        yield one.finding()


def gathered(findings: Iterable[Finding]) -> Findings:
    """Return `findings`, at most `FINDINGS_MAX` per kind, with the count of each kind."""
    every = tuple(findings)
    kept: dict[str, list[Finding]] = {}
    counts: dict[str, int] = {}
    row_counts: dict[str, int] = {}
    for finding in in_ranges(every):
        kind = finding.kind.value
        counts[kind] = counts.get(kind, 0) + 1
        row_counts[kind] = row_counts.get(kind, 0) + finding.singles
        if counts[kind] <= FINDINGS_MAX:
            kept.setdefault(kind, []).append(finding)
    return Findings(
        kept=tuple(one for found in kept.values() for one in found),
        counts=counts,
        row_counts=row_counts,
        wholes=(every,) if counts else (),
    )


def first_of_each_kind(findings: Iterable[Finding]) -> Findings:
    """Return the first finding of each kind; all are looked for."""
    found: dict[Kind, Finding] = {}
    for finding in findings:
        found.setdefault(finding.kind, finding)
    return gathered(found.values())
