"""Findings are counted here, and those of neighbouring rows become one with a range. Pure.

Ids skip numbers, so two rows are neighbours only if one names the other: the `pid` of the later row
is the id of the earlier one. A finding of a row therefore comes with its pid, even if its text does
not show it. Memory stays bounded, however many findings there are: one range per kind is open, and
a sample is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from chain_verifier.config import FINDINGS_MAX
from chain_verifier.findings import KINDS_OF_ROWS, Finding, Findings, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

ALIKE: Final = ("columns", "chain_id", "until_id", "count")
"""The fields in which neighbours of one kind, from one search in one source, must be equal."""

ORDER: Final = ("id", "pid", "columns", "chain_id")
"""The order in which the findings of a kind of rows are taken; without a value comes first."""

_PID_HIDDEN: Final = KINDS_OF_ROWS - {Kind.NULL, Kind.FOREIGN_CHAIN, Kind.BEYOND_HEAD}


def ranged(first: Finding, last_id: int | None, rows: int) -> Finding:
    """Return `rows` findings of neighbouring rows, from `first` to `last_id`, as one.

    The pid is left out where it only shows which rows are neighbours.
    """
    shown = replace(first, pid=None) if first.kind in _PID_HIDDEN else first
    return shown if rows == 1 else replace(shown, last_id=last_id, rows=rows)


class _Range:
    """Neighbouring rows so far."""

    def __init__(self, first: Finding) -> None:
        self.first = first
        self.last_id = first.id
        self.rows = 1
        self._alike = _alike_of(first)

    def takes(self, finding: Finding) -> bool:
        """Return whether `finding` is of the next row; then the range ends with it."""
        is_next = self.last_id is not None and finding.pid == self.last_id
        if not is_next or _alike_of(finding) != self._alike:
            return False
        self.last_id = finding.id
        self.rows += 1
        return True


def _alike_of(finding: Finding) -> tuple[object, ...]:
    names = (finding.source, finding.against)
    return (*names, *(getattr(finding, name) for name in ALIKE))


def in_ranges(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield `findings`, those of neighbouring rows as one.

    Those of one kind of rows must come in `ORDER`. Other kinds are passed on as they are.
    """
    at_work: dict[Kind, _Range] = {}
    for finding in findings:
        if finding.kind not in KINDS_OF_ROWS:
            yield finding
            continue
        before = at_work.get(finding.kind)
        if before is not None and before.takes(finding):
            continue
        at_work[finding.kind] = _Range(finding)
        if before is not None:
            yield ranged(before.first, before.last_id, before.rows)
    for one in at_work.values():
        yield ranged(one.first, one.last_id, one.rows)


def gathered(findings: Iterable[Finding]) -> Findings:
    """Return `findings`, at most `FINDINGS_MAX` per kind, with the count of each kind."""
    every = tuple(findings)
    return _counted(every, (every,))


def collected(look: Callable[[], Iterable[Finding]]) -> Findings:
    """Return what `look` finds, however much: findings are counted, and only a sample is kept.

    A caller that wants all of them calls `look` once more.
    """
    found = _counted(look(), (look,))
    return replace(found, kept=tuple(sorted(found.kept, key=_kind)))


def _kind(finding: Finding) -> Kind:
    return finding.kind


def _counted(findings: Iterable[Finding], wholes: tuple[object, ...]) -> Findings:
    kept: dict[str, list[Finding]] = {}
    counts: dict[str, int] = {}
    row_counts: dict[str, int] = {}
    for finding in in_ranges(findings):
        kind = finding.kind.value
        counts[kind] = counts.get(kind, 0) + 1
        row_counts[kind] = row_counts.get(kind, 0) + (finding.rows or 1)
        if counts[kind] <= FINDINGS_MAX:
            kept.setdefault(kind, []).append(finding)
    return Findings(
        kept=tuple(one for found in kept.values() for one in found),
        counts=counts,
        row_counts=row_counts,
        wholes=wholes if counts else (),
    )
