"""`verify` in plain Python, without Java and Spark: each chain by the same steps."""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from chain_kernel.errors import SettingError
from chain_kernel.text import silent
from chain_verifier.checks.neighbours import collected
from chain_verifier.checks.seals import BatchCheck, genesis_of, seal_ends
from chain_verifier.config import (
    DatabaseSource,
    JournalSource,
    ParquetSource,
    TopicSource,
    local_folder,
    require_sound,
)
from chain_verifier.findings import Finding, Findings, Kind
from chain_verifier.local import source_check
from chain_verifier.local.database import LocalDatabaseTable
from chain_verifier.local.table import LocalJournalTable
from chain_verifier.report import ChainsReport, Unverified, outcomes_of
from chain_verifier.verification import Verification

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from chain_verifier.checks.buckets import Horizon
    from chain_verifier.config import KeptSeal, Source, VerifyRequest
    from chain_verifier.local.table import LocalTable
    from chain_verifier.report import Report
    from chain_verifier.verification import ScanPlan, ShowStep


def check_seals(table: LocalDatabaseTable, chain_id: int, kept: Sequence[KeptSeal]) -> Findings:
    """Return every batch whose rows do not give its seal, its count, its range or its epoch.

    Reads every column of every page once, in the order of ids. `kept` are seals that were exported.
    Raises SourceBroken.
    """

    def look() -> Iterator[Finding]:
        checked = BatchCheck(genesis_of(table, chain_id))
        ends = {table.head.last_id, *(each.id for each in kept)}
        computed: dict[int, list[bytes]] = {}
        for batch in table.sealed():
            for misfit in checked.misfits(batch):
                seals = misfit.pop("computed", [])
                if seals and batch["id"] in ends:
                    computed[batch["id"]] = seals
                yield _finding(table.name, misfit)
        yield from seal_ends(table, chain_id, kept, lambda last_id: computed.get(last_id, ()))

    return collected(look)


def _finding(source: str, misfit: dict[str, Any]) -> Finding:
    fields: dict[str, Any] = misfit | {"kind": Kind(misfit["kind"])}
    fields["ids"] = tuple(misfit.get("ids", ()))
    return Finding(source=source, **fields)


def verify_locally(request: VerifyRequest, progress: ShowStep = silent) -> Report:
    """Verify the sources of `request`, each alone and then against each other, without Spark.

    Memory stays constant for a chain of any length: rows are read in pages. Raises RefusedError (a
    source cannot be used, nothing was found out) or SourceBroken (it broke off: nothing is known of
    the whole). A report means that everything was read.
    """
    _require_local([request])
    return _verified(request, progress)


def verify_chains_locally(
    chains: Sequence[VerifyRequest | Unverified], progress: ShowStep = silent
) -> ChainsReport:
    """Verify several chains, one after the other.

    Raises RefusedError for what shows before anything is read. Later, a chain that cannot be
    verified does not stop the others: its outcome gives the reason, as for one that is `Unverified`
    already.
    """
    _require_local([one for one in chains if not isinstance(one, Unverified)])
    began = time.monotonic()
    outcomes = outcomes_of(chains, partial(_verified, progress=progress))
    return ChainsReport(
        outcomes=outcomes, spark_start_seconds=0, seconds=round(time.monotonic() - began, 3)
    )


def _require_local(requests: Sequence[VerifyRequest]) -> None:
    """Raise SettingError for what only Spark can do, and for what no mode can."""
    require_sound(requests)
    for request in requests:
        if request.master is not None:
            raise SettingError("master", request.master, "none: the local mode runs without Spark")
        if request.findings_folder is not None:
            local_folder("findings", request.findings_folder)
        for source in request.sources:
            if isinstance(source, ParquetSource):
                local_folder("parquet", source.path)


def _verified(request: VerifyRequest, progress: ShowStep) -> Report:
    with ExitStack() as opened:
        return Verification(request, LocalMode(request, opened), progress).run()


class LocalMode:
    """The steps of a verification in plain Python. Implements `verification.Mode`."""

    def __init__(self, request: VerifyRequest, opened: ExitStack) -> None:
        self._chain_id = request.chain_id
        self._start = request.start
        self._opened = opened
        self._database: LocalDatabaseTable | None = None

    def open(self, source: Source) -> LocalTable:
        """Open a source, the database first; it is closed with the stack."""
        if isinstance(source, DatabaseSource):
            self._database = LocalDatabaseTable(source, self._chain_id, self._start)
            self._opened.callback(self._database.close)
            return self._database
        if isinstance(source, TopicSource):
            return self._topic(source)
        if isinstance(source, JournalSource):
            return LocalJournalTable(source)
        return _parquet_table(source)

    def _topic(self, source: TopicSource) -> LocalTable:
        """Open a topic; only this imports aiokafka."""
        from chain_verifier.local.topic import LocalTopicTable

        table = LocalTopicTable(source, self._chain_id, self._database)
        self._opened.callback(table.close)
        return table

    examine = staticmethod(source_check.examine)
    rows_beyond = staticmethod(source_check.rows_beyond)
    compare = staticmethod(source_check.compare)

    def forged_findings(self, topic: LocalTable, base: LocalTable, horizon: Horizon) -> Findings:
        """Return the rows of forged frames that `base` does not hold with the same content."""
        from chain_verifier.local.topic import LocalTopicTable

        return (
            source_check.forged_findings(topic, base)
            if isinstance(topic, LocalTopicTable)
            else Findings()
        )

    def check_seals(self, table: LocalTable, kept: Sequence[KeptSeal]) -> Findings:
        """Recompute the seals of the database."""
        if not isinstance(table, LocalDatabaseTable):
            return Findings()
        return check_seals(table, self._chain_id, kept)

    def repeated_keys(
        self, table: LocalTable, horizon: Horizon, window_rows: int, how: ScanPlan
    ) -> Findings:
        """Return the rows whose key an earlier row has."""
        return source_check.repeated_keys(table, horizon, window_rows)

    def write_findings(self, findings: Findings, folder: str) -> None:
        """Add all `findings` to the files in `folder`; only this and Parquet import pyarrow."""
        from chain_verifier.local.parquet import write_findings

        write_findings(self._chain_id, findings, folder)


def _parquet_table(source: ParquetSource) -> LocalTable:
    """Open Parquet; pyarrow, a large installation, is imported only if needed."""
    from chain_verifier.local.parquet import LocalParquetTable

    return LocalParquetTable(source)
