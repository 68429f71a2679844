"""Findings of a chain. One class and a kind: a report is a table, not a tree."""

from __future__ import annotations

import enum
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import fields

from chain_kernel.text import counted

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
    """The rows of the batch `id` to `until_id` do not give the stored seal; of `batches`, if these
    are several."""
    HEAD_SEAL = "head_seal"
    """The seal of the head row is not that of the batch that ends with `id`."""
    KEPT_SEAL = "kept_seal"
    """No batch ends with `id` under the seal that was kept outside."""
    BATCH_COUNT = "batch_count"
    """The batch `id` to `until_id` states `expected_count` rows and has `count`; or `batches`
    state so many together and have none."""
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
    """One thing that is wrong; fields without meaning for its kind are left out.

    Findings of neighbouring rows are one, from the row `id` to the row `last_id`; those of
    neighbouring batches are one, from the row `id` to the row `until_id`.
    """

    kind: Kind
    source: str
    id: int | None = None
    last_id: int | None = None
    """Inclusive. None in a finding of one row."""
    rows: int | None = None
    """Number of rows from `id` to `last_id`. None in a finding of one row."""
    batches: int | None = None
    """Number of batches from `id` to `until_id`. None in a finding of one batch."""
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
        return self.text_with(str)

    @property
    def sentence(self) -> str:
        """The line as a sentence, its numbers with separators."""
        text = self.text_with("{:,}".format)
        return f"{text[0].upper()}{text[1:]}."

    def text_with(self, number: Callable[[int], str]) -> str:
        """Return the line with its numbers as `number` writes them."""
        texts = _TEXTS if self.singles == 1 else _TEXTS_OF_RANGES
        return texts[self.kind].format_map(_Shown(self, number))

    @property
    def singles(self) -> int:
        """Number of findings of a row, or of a batch, that it stands for."""
        return self.rows or self.batches or 1


_TYPES: Final = {
    int | None: "bigint",
    tuple[int, ...]: "array<bigint>",
    tuple[str, ...]: "array<string>",
}

FINDING_TYPES: Final = {
    field.name: _TYPES.get(field.type, "string")
    for field in fields(Finding)
    if field.name not in {"last_id", "rows", "batches"}
}
"""The fields of a finding of one row or batch as Spark writes it to files, with their types in
SQL."""

CHAIN: Final = "chain"
"""The column that says which chain was verified; `chain_id` is that of a foreign row."""


def finding_columns(finding: Finding) -> dict[str, Any]:
    """Return the values of `FINDING_TYPES`; an empty field is None."""
    values = {name: getattr(finding, name) for name in FINDING_TYPES}
    known = {name: None if value in ((), "") else value for name, value in values.items()}
    return known | {"kind": finding.kind.value}  # Java takes plain texts only


class _Shown(dict[str, str]):
    """The fields of a finding as words, made when a text needs them."""

    def __init__(self, finding: Finding, number: Callable[[int], str]) -> None:
        super().__init__()
        self._finding = finding
        self._number = number

    def __missing__(self, name: str) -> str:
        finding = self._finding
        if name == "counted_rows":
            return counted(finding.count or 0, "row")
        if name == "rows":
            return counted(finding.rows or 0, "row")
        if name == "batches":
            return counted(finding.batches or 0, "batch")
        if name == "between":
            # Ids skip: whether there was a row in between is not known.
            after_id, until_id = finding.after_id or 0, finding.until_id or 0
            after = self._number(after_id)
            return "" if until_id == after_id + 1 else f", and no row is between {after} and it"
        if name == "key":
            return ascii(finding.key)
        if name == "unfit":
            columns = ", ".join(finding.columns)
            return f", and its {columns} do not fit each other" if columns else ""
        if name == "seal_there":
            return f"is {finding.seal}" if finding.seal else "is none: no batch ends there"
        return self._value(getattr(finding, name))

    def _value(self, value: object) -> str:
        if isinstance(value, tuple):
            return ", ".join(map(self._value, value))
        if isinstance(value, int):
            return self._number(value)
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
    Kind.OUT_OF_ORDER: "out of order, after row {after_id}: {counted_rows}, ids {id} to {until_id}",
    Kind.WRONG_PAGE: "page {id} to {until_id} holds rows from and to {ids}{unfit}",
    Kind.ROW_COUNT: "{counted_rows}, but the commits counted {expected_count}",
    Kind.WRONG_EPOCH: "rows from {id} on have epoch {epoch}, expected {expected_epoch}",
    Kind.SEAL_MISMATCH: "seal mismatch: rows {id} to {until_id} are not those that were sealed",
    Kind.HEAD_SEAL: "the seal of the head row is not that of the batch that ends with {id}",
    Kind.KEPT_SEAL: "no batch ends with {id} under the seal that was kept",
    Kind.BATCH_COUNT: "batch {id} to {until_id}: {counted_rows}, committed were {expected_count}",
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


_TEXTS_OF_RANGES: Mapping[Kind, str] = {
    Kind.DUPLICATE: "duplicate: {rows} from {id} to {last_id} are there {count} times each",
    Kind.NULL: "{rows} from {id} (pid {pid}) to {last_id} have NULL in {columns}",
    Kind.FOREIGN_CHAIN: "{rows} from {id} to {last_id} are of chain {chain_id}",
    Kind.BEYOND_HEAD: ("{rows} from {id} (pid {pid}) to {last_id} are after the head {until_id}"),
    Kind.LACKING: "{rows} from {id} to {last_id} are lacking, {against} has them",
    Kind.SURPLUS: "{rows} from {id} to {last_id} are too much, {against} lacks them",
    Kind.DIFFERING: "{rows} from {id} to {last_id} differ from {against} in {columns}",
    Kind.SEAL_MISMATCH: (
        "seal mismatch: rows {id} to {until_id}, {batches}, are not those that were sealed"
    ),
    Kind.BATCH_COUNT: (
        "{batches} from {id} to {until_id} have no rows, committed were {expected_count}"
    ),
}
"""Texts of the kinds of which each finding is of a row or batch, or of a range of neighbours."""

KINDS_OF_BATCHES: Final = frozenset({Kind.SEAL_MISMATCH, Kind.BATCH_COUNT})
KINDS_OF_ROWS: Final = frozenset(_TEXTS_OF_RANGES) - KINDS_OF_BATCHES


class Findings(Struct, frozen=True, kw_only=True):
    """Findings with their number: all are counted, a bounded sample of each kind is kept."""

    kept: tuple[Finding, ...] = ()
    counts: dict[str, int] = {}
    """By kind; findings of neighbours are one."""
    row_counts: dict[str, int] = {}
    """By kind, with one for each row, or batch, of those."""
    wholes: tuple[object, ...] = ()
    """All of them, row by row, for a caller that wants more than the sample: tuples of findings,
    and frames of Spark."""

    @property
    def total(self) -> int:
        """Number of findings, kept or not."""
        return sum(self.counts.values())

    @property
    def total_by_row(self) -> int:
        """Number of findings if each row counts: as many as `wholes` give."""
        return sum(self.row_counts.values())


def joined_findings(parts: Sequence[Findings]) -> Findings:
    """Return several findings as one."""
    return Findings(
        kept=tuple(one for part in parts for one in part.kept),
        counts=_summed(part.counts for part in parts),
        row_counts=_summed(part.row_counts for part in parts),
        wholes=tuple(whole for part in parts for whole in part.wholes),
    )


def _summed(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    summed: Counter[str] = Counter()
    for one in counts:
        summed.update(one)
    return dict(summed)
