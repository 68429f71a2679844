"""What can be wrong with a chain. One class and a kind: a report is a table, not a tree."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from msgspec import Struct

from chain_verifier.config import FINDINGS_MAX
from orderchain.text import counted as counted_as_read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


class Kind(enum.StrEnum):
    """The kinds of findings; `docs/verification.md` says what each means and what to do."""

    GAP = "gap"
    """Rows are missing after `after_id`, up to and including `until_id`."""
    FORK = "fork"
    """The rows `ids` all name the same `pid`."""
    SECOND_ROOT = "second_root"
    """The rows `ids` all claim to be the first of the chain."""
    ORPHAN = "orphan"
    """The row `id` names a `pid` that is no row, and is at a place where nothing is missing."""
    DUPLICATE = "duplicate"
    """The id `id` occurs `count` times."""
    PID_NOT_BELOW_ID = "pid_not_below_id"
    """The row `id` names a `pid` that is not before it."""
    NULL = "null"
    """A row has no value in a column."""
    FOREIGN_CHAIN = "foreign_chain"
    """A row of another chain."""
    BEYOND_HEAD = "beyond_head"
    """A row after the head: it was never committed."""
    OUT_OF_ORDER = "out_of_order"
    """`count` rows, from `id` to `until_id`, are placed after the row `after_id`."""
    WRONG_PAGE = "wrong_page"
    """The page `id` to `until_id` holds rows that begin and end with `ids`; its `columns` are of
    another length or form."""
    ROW_COUNT = "row_count"
    """The commits counted `expected_count` rows, the table holds `count`."""
    WRONG_EPOCH = "wrong_epoch"
    """The rows from `id` on have `epoch`, and should have `expected_epoch`."""
    SEAL_MISMATCH = "seal_mismatch"
    """The rows of the batch `id` to `until_id` do not give the stored seal."""
    HEAD_SEAL = "head_seal"
    """The seal of the head row is not that of the batch that ends with `id`."""
    KEPT_SEAL = "kept_seal"
    """No batch ends with `id` under the seal that was kept outside."""
    BATCH_COUNT = "batch_count"
    """The batch `id` to `until_id` states `expected_count` rows and has `count`."""
    BATCH_RANGE = "batch_range"
    """The rows of the batch `id` to `until_id` begin and end with `ids`, after the row `pid`."""
    REPEATED_KEY = "repeated_key"
    """The rows `ids` have the same key, within the window in which it must not repeat."""
    CONTRADICTED_MARK = "contradicted_mark"
    """The rows after `after_id` up to `until_id` are not those that were verified: a mark says
    `expected_seal`, the database says `seal`; `count` marks are contradicted."""
    DAMAGED_RANGE = "damaged_range"
    """So much is damaged that rows `id` to `until_id` were not looked at one by one."""
    LACKING = "lacking"
    """The row `id` is in `against`, and is lacking here, or occurs here less often."""
    SURPLUS = "surplus"
    """The row `id` is here, and is lacking in `against`, or occurs there less often."""
    DIFFERING = "differing"
    """The row `id` differs from the one in `against`, in `columns`."""


class Finding(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that is wrong; fields without meaning for its kind are left out."""

    kind: Kind
    source: str
    id: int | None = None
    pid: int | None = None
    ids: tuple[int, ...] = ()
    after_id: int | None = None
    """Exclusive."""
    until_id: int | None = None
    """Inclusive. In a gap, this row itself is missing."""
    count: int | None = None
    expected_count: int | None = None
    columns: tuple[str, ...] = ()
    against: str = ""
    chain_id: int | None = None
    epoch: int | None = None
    expected_epoch: int | None = None
    key: str = ""
    seal: str = ""
    """In hexadecimal; empty if no batch ends there."""
    expected_seal: str = ""
    mark_id: int | None = None
    verified_by: str = ""
    verified_at: str = ""
    """In ISO 8601, UTC."""

    @property
    def text(self) -> str:
        """One line for people."""
        return _TEXTS[self.kind].format_map(_Shown(self))


class _Shown(dict[str, str]):
    """The fields of a finding as words, made when a text needs them."""

    def __init__(self, finding: Finding) -> None:
        super().__init__()
        self._finding = finding

    def __missing__(self, name: str) -> str:
        if name == "rows":
            return counted_as_read(self._finding.count or 0, "row")
        if name == "between":
            # Ids skip: whether there was a row in between, nobody knows.
            after_id, until_id = self._finding.after_id or 0, self._finding.until_id or 0
            return "" if until_id == after_id + 1 else f", and no row is between {after_id} and it"
        if name == "key":
            return ascii(self._finding.key)
        if name == "unfit":
            columns = ", ".join(self._finding.columns)
            return f", and its {columns} do not fit each other" if columns else ""
        if name == "seal_there":
            return (
                f"is {self._finding.seal}" if self._finding.seal else "is none: no batch ends there"
            )
        value = getattr(self._finding, name)
        if isinstance(value, tuple):
            return ", ".join(map(str, value))
        return "NULL" if value is None else str(value)


_TEXTS: Mapping[Kind, str] = {
    Kind.GAP: "order {until_id} is missing{between}",
    Kind.FORK: "fork: rows {ids} all name pid {pid}",
    Kind.SECOND_ROOT: "second root: rows {ids} all name pid {pid}, the start",
    Kind.ORPHAN: "orphan: row {id} names pid {pid}, which is no row",
    Kind.DUPLICATE: "duplicate: id {id} is there {count} times",
    Kind.PID_NOT_BELOW_ID: "row {id} names pid {pid}, which does not lie before it",
    Kind.NULL: "row {id} (pid {pid}) has NULL in {columns}",
    Kind.FOREIGN_CHAIN: "row {id} is of chain {chain_id}",
    Kind.BEYOND_HEAD: "row {id} (pid {pid}) is after the head {until_id}",
    Kind.OUT_OF_ORDER: "out of order, after row {after_id}: {rows}, ids {id} to {until_id}",
    Kind.WRONG_PAGE: "page {id} to {until_id} holds rows from and to {ids}{unfit}",
    Kind.ROW_COUNT: "{rows}, but the commits counted {expected_count}",
    Kind.WRONG_EPOCH: "rows from {id} on have epoch {epoch}, expected {expected_epoch}",
    Kind.SEAL_MISMATCH: "seal mismatch: rows {id} to {until_id} are not those that were sealed",
    Kind.HEAD_SEAL: "the seal of the head row is not that of the batch that ends with {id}",
    Kind.KEPT_SEAL: "no batch ends with {id} under the seal that was kept",
    Kind.BATCH_COUNT: "batch {id} to {until_id}: {rows}, committed were {expected_count}",
    Kind.BATCH_RANGE: "batch {id} to {until_id}: its rows end with {ids}, after row {pid}",
    Kind.REPEATED_KEY: "two orders under one key: rows {ids} have the key {key}",
    Kind.CONTRADICTED_MARK: (
        "contradicted mark: the rows after {after_id} up to {until_id} are not those that "
        "{verified_by} verified at {verified_at} (mark {mark_id}; contradicted are {count}): the "
        "seal was {expected_seal}, and {seal_there}. Compare them with an archive, a journal or a "
        "backup; docs/verification.md, 'A contradicted mark', says what then"
    ),
    Kind.DAMAGED_RANGE: "too much is damaged: rows {id} to {until_id} were not looked at singly",
    Kind.LACKING: "row {id} is lacking, {against} has it",
    Kind.SURPLUS: "row {id} is too much, {against} lacks it",
    Kind.DIFFERING: "row {id} differs from {against} in {columns}",
}


class Findings(Struct, frozen=True, kw_only=True):
    """Findings with their number: all are counted, a bounded sample of each kind is kept."""

    kept: tuple[Finding, ...] = ()
    counts: dict[str, int] = {}
    wholes: tuple[object, ...] = ()
    """What gives all of them, for a caller that wants more than the sample: tuples of findings,
    functions that search once more (the local mode), frames (Spark)."""

    @property
    def total(self) -> int:
        """How many there are, kept or not."""
        return sum(self.counts.values())


def gathered(findings: Iterable[Finding]) -> Findings:
    """Return `findings`, at most `FINDINGS_MAX` per kind, with the count of each kind."""
    every = tuple(findings)
    by_kind: dict[Kind, list[Finding]] = {}
    for finding in every:
        by_kind.setdefault(finding.kind, []).append(finding)
    return Findings(
        kept=tuple(one for found in by_kind.values() for one in found[:FINDINGS_MAX]),
        counts={kind.value: len(found) for kind, found in by_kind.items()},
        wholes=(every,) if every else (),
    )


def collected(look: Callable[[], Iterable[Finding]]) -> Findings:
    """Return what `look` finds, however much: findings are counted, and only a sample is kept.

    A caller that wants all of them calls `look` once more.
    """
    kept: list[Finding] = []
    counts: dict[str, int] = {}
    for finding in look():
        counts[finding.kind.value] = counts.get(finding.kind.value, 0) + 1
        if counts[finding.kind.value] <= FINDINGS_MAX:
            kept.append(finding)
    return Findings(kept=tuple(kept), counts=counts, wholes=(look,) if kept else ())


def joined(parts: Sequence[Findings]) -> Findings:
    """Return several findings as one."""
    counts: dict[str, int] = {}
    for part in parts:
        for kind, count in part.counts.items():
            counts[kind] = counts.get(kind, 0) + count
    return Findings(
        kept=tuple(one for part in parts for one in part.kept),
        counts=counts,
        wholes=tuple(whole for part in parts for whole in part.wholes),
    )
