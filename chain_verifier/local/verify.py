"""`verify` in plain Python, without Java and Spark: each chain by the same steps."""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from chain_verifier.chains_report import ChainsReport, Unverified, outcomes_of
from chain_verifier.config import DatabaseSource, JournalSource, ParquetSource, TopicSource
from chain_verifier.findings import Findings
from chain_verifier.local.compare import compare, strays
from chain_verifier.local.database import DatabaseTable
from chain_verifier.local.examine import examine, rows_beyond
from chain_verifier.local.journal import JournalTable
from chain_verifier.local.keys import repeated_keys
from chain_verifier.local.seals import check_seals
from chain_verifier.places import local_folder
from chain_verifier.request_check import require_sound
from chain_verifier.verification import Verification, silent
from orderchain.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chain_verifier.bucket import Bucket
    from chain_verifier.config import KeptSeal, Source, VerifyRequest
    from chain_verifier.examined import Examined
    from chain_verifier.horizon import Horizon
    from chain_verifier.how import How
    from chain_verifier.local.table import Table
    from chain_verifier.report import Report
    from chain_verifier.verification import Progress, Ranges


def verify_locally(request: VerifyRequest, progress: Progress = silent) -> Report:
    """Verify the sources of `request`, each alone and then against each other, without Spark.

    Memory stays flat however long the chain: rows pass by in pages. Raises RefusedError (a source
    cannot be used, nothing was found out) or SourceBroken (it broke off: nothing is known of the
    whole). A report means that all was read.
    """
    _require_local([request])
    return _verified(request, progress)


def verify_chains_locally(
    chains: Sequence[VerifyRequest | Unverified], progress: Progress = silent
) -> ChainsReport:
    """Verify several chains, one after the other.

    Raises RefusedError for what shows before anything is read. Later a chain that cannot be
    verified keeps no other from it: its outcome tells why, as of one that is `Unverified` already.
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


def _verified(request: VerifyRequest, progress: Progress) -> Report:
    with ExitStack() as opened:
        return Verification(request, LocalMode(request, opened), progress).run()


class LocalMode:
    """The steps of a verification in plain Python. Implements `verification.Mode`."""

    def __init__(self, request: VerifyRequest, opened: ExitStack) -> None:
        self._chain_id = request.chain_id
        self._start = request.start
        self._opened = opened
        self._database: DatabaseTable | None = None

    def open(self, source: Source) -> Table:
        """Open a source, the database first; it is closed with the stack."""
        if isinstance(source, DatabaseSource):
            self._database = DatabaseTable(source, self._chain_id, self._start)
            self._opened.callback(self._database.close)
            return self._database
        if isinstance(source, TopicSource):
            return self._topic(source)
        if isinstance(source, JournalSource):
            return JournalTable(source)
        return _parquet_table(source)

    def _topic(self, source: TopicSource) -> Table:
        """Open a topic; only this asks for aiokafka."""
        from chain_verifier.local.topic import TopicTable

        table = TopicTable(source, self._chain_id, self._database)
        self._opened.callback(table.close)
        return table

    def examine(self, table: Table, horizon: Horizon, how: How) -> Examined:
        """Scan a source, and name its faults."""
        return examine(table, horizon, how)

    def rows_beyond(self, table: Table, horizon: Horizon, head: int) -> Findings:
        """Return the rows behind `head`."""
        return rows_beyond(table, horizon, head)

    def compare(
        self,
        table: Table,
        base: Table,
        differing: Sequence[Bucket],
        horizon: Horizon,
        skips: Ranges,
    ) -> Findings:
        """Compare two sources row by row, in the buckets that differ."""
        return compare(table, base, differing, horizon, skips)

    def strays(self, topic: Table, base: Table, horizon: Horizon) -> Findings:
        """Return the rows of forged frames that `base` does not hold so."""
        from chain_verifier.local.topic import TopicTable

        return strays(topic, base) if isinstance(topic, TopicTable) else Findings()

    def check_seals(self, table: Table, kept: KeptSeal | None) -> Findings:
        """Recompute the seals of the database."""
        if not isinstance(table, DatabaseTable):
            return Findings()
        return check_seals(table, self._chain_id, kept)

    def repeated_keys(self, table: Table, horizon: Horizon, window_rows: int, how: How) -> Findings:
        """Return the rows whose key an earlier row has."""
        return repeated_keys(table, horizon, window_rows)

    def write_findings(self, findings: Findings, folder: str) -> None:
        """Add all `findings` to the files in `folder`; only this and Parquet ask for pyarrow."""
        from chain_verifier.local.written_findings import write_findings

        write_findings(self._chain_id, findings, folder)


def _parquet_table(source: ParquetSource) -> Table:
    """Open Parquet; only this asks for pyarrow, which is no small installation."""
    from chain_verifier.local.parquet import ParquetTable

    return ParquetTable(source)
