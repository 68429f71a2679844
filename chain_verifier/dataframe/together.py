"""Many chains of one database in one job, grouped by chain: which of them are proven whole.

The statements are those for one chain, with its number as a constant; those of some tens of chains
are one table, so that a task reads many chains over one connection. Nothing is said of a chain that
is not proven here: it is verified alone, which names its faults. So the findings are the same.
"""

from __future__ import annotations

import secrets
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own documents use

from chain_kernel.errors import OrderchainError, SourceBroken
from chain_verifier.checks.seals import BatchCheck, genesis_of
from chain_verifier.config import (
    FETCH_PAGES,
    DatabaseSource,
    VerifyRequest,
)
from chain_verifier.database_facts import SQL, DatabaseHead, filled, head_of, page_ranges
from chain_verifier.report import Unverified, unverified_by
from chain_verifier.server import Reading
from chain_verifier.sources.database import PageRange
from chain_verifier.spark.database import FINDS, DatabaseTable, paths_of
from chain_verifier.spark.errors import as_broken
from chain_verifier.spark.source_check import whole_chains
from chain_verifier.spark.statements import find, find_rows
from chain_verifier.verification import KEY_BITS, ScannedSource, horizon_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from chain_verifier.spark.statements import Pieces, WorkerLogin
    from chain_verifier.verification import ShowStep


_HEADS: Final = 200
"""Chains whose heads are read by one statement: the server locks the partitions of all."""

_CHAINS: Final = 50
"""Chains of one statement, which is planned for each of them: what a task reads."""

_TASK_ROWS: Final = 500_000
"""A task reads fewer chains where they have more rows together: this takes it a second or so."""

_ROWS_MAX: Final = 2_000_000
"""A chain with more rows is verified alone: its rows are spread over tasks, as chains are here."""

_EDGES: Final = f"chain_id int, start_id bigint, {FINDS['edges']}"

_SEALS_SCHEMA: Final = "chain_id int, id bigint, seal binary"
"""The seals that are asked for, and a row without a seal for each batch that does not fit."""


class KnownTable(DatabaseTable):
    """A chain whose head was read with those of others, and maybe some of its seals."""

    def __init__(
        self,
        spark: SparkSession,
        source: DatabaseSource,
        request: VerifyRequest,
        head: DatabaseHead,
    ) -> None:
        super().__init__(spark, source, request.chain_id, request.start, head)
        self.seals: dict[int, bytes] = {}

    def seal_at(self, last_id: int) -> bytes | None:
        """Return the seal after the batch that ends with `last_id`; None if none does."""
        return self.seals.get(last_id) or super().seal_at(last_id)


class Proven(Struct, kw_only=True):
    """Results of the joint look at one chain; its own verification looks for the rest."""

    table: KnownTable
    scanned: ScannedSource | None = None
    """None: its rows are not proven to be one path."""
    are_seals_whole: bool = False
    """Every batch gives its seal, count, range and epoch."""
    has_own_keys: bool = False
    """No two rows have the same key."""


def look_at_all(
    spark: SparkSession, chains: Sequence[VerifyRequest | Unverified], progress: ShowStep
) -> tuple[dict[int, Proven], dict[int, Unverified]]:
    """Return by `id()` of a request what one look shows, and those whose database cannot be read.

    Only chains with the database as their only source are looked at, and only if there are several.
    """
    requests = [one for one in chains if isinstance(one, VerifyRequest) and len(one.sources) == 1]
    proven: dict[int, Proven] = {}
    away: dict[int, Unverified] = {}
    for (source,), same in groupby(requests, key=lambda one: one.sources):
        asked = {request.chain_id: request for request in same}
        if len(asked) == 1 or not isinstance(source, DatabaseSource):
            continue
        progress(f"checking {len(asked)} chains together")
        try:
            tables = _tables_of(spark, source, asked)
        except OrderchainError as error:
            away |= {id(one): unverified_by(error, number) for number, one in asked.items()}
        else:
            found = _Together(spark, asked, tables).look()
            proven |= {id(asked[number]): one for number, one in found.items()}
    return proven, away


def _tables_of(
    spark: SparkSession, source: DatabaseSource, requests: Mapping[int, VerifyRequest]
) -> dict[int, KnownTable]:
    """Return the chains that exist, their heads read. Raises ConnectError, SchemaError."""
    numbers, tables = list(requests), dict[int, KnownTable]()
    with Reading(source.database, source.connect_seconds) as reading:
        for at in range(0, len(numbers), _HEADS):
            some = numbers[at : at + _HEADS]
            starts = [requests[number].start for number in some]
            for row in reading.fetch(filled(SQL["head"], some, starts)):
                head, request = head_of(dict(row)), requests[row["chain_id"]]
                if head is not None:
                    tables[request.chain_id] = KnownTable(spark, source, request, head)
    return tables


class _Together:
    """The chains of one database, looked at in one job for each thing that is asked."""

    def __init__(
        self,
        spark: SparkSession,
        requests: Mapping[int, VerifyRequest],
        tables: Mapping[int, KnownTable],
    ) -> None:
        self._spark = spark
        self._requests = requests
        self._tables = tables

    def look(self) -> dict[int, Proven]:
        """Return what is known of each chain; where a job breaks off, only the heads."""
        found = {number: Proven(table=table) for number, table in self._tables.items()}
        try:
            with as_broken("database"):
                self._look(found)
        except SourceBroken:
            pass  # one chain may be the cause: each is verified alone, and reports its own
        return found

    def _look(self, found: Mapping[int, Proven]) -> None:
        small = [n for n, table in self._tables.items() if table.head.rows_counted <= _ROWS_MAX]
        for number, scanned in self._whole(small).items():
            found[number].scanned = scanned
        whole = {n: self._requests[n] for n in small if found[n].scanned is not None}
        for number in self._sealed([n for n, asked in whole.items() if asked.checks_seals]):
            found[number].are_seals_whole = True
        for number in self._own_keys([n for n, asked in whole.items() if asked.key_window_rows]):
            found[number].has_own_keys = True

    def _whole(self, chains: Sequence[int]) -> dict[int, ScannedSource]:
        """Return the chains that are one path, and those of which there is nothing to look at."""
        horizons = {n: horizon_of(self._requests[n], self._tables[n]) for n in chains}
        if not chains:
            return {}
        pages = find(self._spark, self._login, self._statements("edges", "last_id", chains), _EDGES)
        paths = paths_of(pages, F.col("start_id"))
        buckets = whole_chains(paths, horizons, secrets.randbits(KEY_BITS))
        whole = {n: ScannedSource.whole(path) for n, path in buckets.items() if path is not None}
        bare = [n for n in chains if n not in buckets and horizons[n].head == horizons[n].start]
        return whole | dict.fromkeys(bare, ScannedSource.bare())

    def _sealed(self, chains: Sequence[int]) -> Iterator[int]:
        """Yield the chains whose batches all give their seals; their tables learn some of these."""
        if not chains:
            return
        tables = {number: self._tables[number] for number in chains}
        genesis = {number: genesis_of(table, number) for number, table in tables.items()}
        wanted = {
            number: {table.head.last_id, *(kept.id for kept in self._requests[number].kept_seals)}
            for number, table in tables.items()
        }
        checker = partial(check_batches, genesis, wanted)
        statements = self._statements("sealed", "id", chains)
        sealed = find(self._spark, self._login, statements, _SEALS_SCHEMA, checker, FETCH_PAGES)
        found = sealed.collect()
        damaged = {row["chain_id"] for row in found if row["seal"] is None}
        for row in found:
            table = tables[row["chain_id"]]
            # The seal before the first batch is that of the genesis, unless rows were archived.
            if row["seal"] is not None and (row["id"] or not table.head.boundary_id):
                table.seals[row["id"]] = bytes(row["seal"])
        yield from tables.keys() - damaged

    def _own_keys(self, chains: Sequence[int]) -> Iterator[int]:
        """Yield the chains in which no key occurs twice, whatever the distance."""
        if not chains:
            return
        tasks = [
            [
                PageRange(number, after, until, until)
                for number in some
                for after, until in page_ranges(
                    (), self._requests[number].start, self._tables[number].last_row_id
                )
            ]
            for some in self._tasks(chains)
        ]
        rows = find_rows(self._spark, self._login, tasks, ("id", "key"))
        keys = rows.groupBy("chain_id", "key").agg(F.min("id").alias("a"), F.max("id").alias("b"))
        repeating = keys.where("a < b").select("chain_id").distinct().collect()
        yield from set(chains) - {row["chain_id"] for row in repeating}

    # -- reading -----------------------------------------------------------------------------------

    @property
    def _login(self) -> WorkerLogin:
        return next(iter(self._tables.values())).login

    def _statements(self, name: str, ids: str, chains: Sequence[int]) -> list[str]:
        """Return what finds the same of `chains` after their starts, by tasks."""
        return [
            "\nUNION ALL\n".join(self._member(name, ids, number) for number in some)
            for some in self._tasks(chains)
        ]

    def _member(self, name: str, ids: str, number: int) -> str:
        table, start = self._tables[number], self._requests[number].start
        # Seals are recomputed from the first batch on, wherever the verification begins.
        ((after, until),) = page_ranges((), 0 if name == "sealed" else start, table.last_row_id)
        if name == "sealed":
            until = table.head.last_id
        statement = filled(SQL[name], number, *([table.head.has_rules] if name == "edges" else []))
        member = filled(SQL["between"], number, after, until, start)
        return member.format(statement=statement, ids=ids)

    def _tasks(self, chains: Sequence[int]) -> Iterator[list[int]]:
        task: list[int] = []
        rows = 0
        for number in chains:
            more = self._tables[number].head.rows_counted
            if task and (len(task) == _CHAINS or rows + more > _TASK_ROWS):
                yield task
                task, rows = [], 0
            task.append(number)
            rows += more
        if task:
            yield task


def check_batches(
    genesis: Mapping[int, bytes], wanted: Mapping[int, set[int]], pieces: Pieces
) -> Iterator[pa.RecordBatch]:
    """Check batches that come chain by chain, each chain in the order of ids; within a worker.

    Yields for each chain the seal before its first batch, as that of the id 0, and the seals after
    the `wanted` ids; and a row without a seal for each batch that does not fit.
    """
    import pyarrow as pa

    checks: dict[int, BatchCheck] = {}
    for _, batches in pieces:
        found: list[tuple[int, int, bytes | None]] = []
        for batch in batches:
            number = batch["chain_id"]
            if number not in checks:
                checks[number] = BatchCheck(genesis[number])
                if batch["seal_before"] is not None:
                    found.append((number, 0, batch["seal_before"]))
            if checks[number].misfits(batch):
                found.append((number, batch["id"], None))
            elif batch["id"] in wanted[number]:
                found.append((number, batch["id"], batch["seal"]))
        columns = list(zip(*found, strict=True)) or [(), (), ()]
        kinds = (pa.int32(), pa.int64(), pa.binary())
        yield pa.RecordBatch.from_arrays(
            [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)],
            names=["chain_id", "id", "seal"],
        )
