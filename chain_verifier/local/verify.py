"""`verify` in plain Python, without Java and Spark: the same steps, up to the first faults."""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from chain_kernel.errors import SettingError
from chain_kernel.text import silent
from chain_verifier.checks.neighbours import first_of_each_kind
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
from chain_verifier.local import comparison, source_check
from chain_verifier.report import ChainsReport, Unverified, outcomes_of
from chain_verifier.sources.journal import JournalRows
from chain_verifier.stored_chain import StoredChain
from chain_verifier.verification import Verification

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from chain_verifier.checks.buckets import Horizon
    from chain_verifier.config import KeptSeal, Source, VerifyRequest
    from chain_verifier.local.table import LocalTable
    from chain_verifier.report import Report
    from chain_verifier.verification import ScanPlan, ShowStep


FIRST_ONLY: Final = "only the first fault of each kind is named; Spark names all"
"""The note on a source with findings."""


def check_seals(table: StoredChain, chain_id: int, kept: Sequence[KeptSeal]) -> Findings:
    """Return the first batch of each fault: of a seal, a count, a range or an epoch.

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
                fields = misfit | {"kind": Kind(misfit["kind"])}
                yield Finding(source=table.name, **fields | {"ids": tuple(misfit.get("ids", ()))})
        yield from seal_ends(table, chain_id, kept, lambda last_id: computed.get(last_id, ()))

    return first_of_each_kind(look())


def verify_locally(request: VerifyRequest, progress: ShowStep = silent) -> Report:
    """Verify the sources of `request`, each alone and then against each other, without Spark.

    The report is clean exactly if that of Spark is; of what is wrong it names the first of each
    kind. Memory stays constant for a chain of any length: rows are read in pages.

    Raises RefusedError (a source cannot be used, nothing was found out) or SourceBroken (it broke
    off: nothing is known of the whole). A report means that everything was read.
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


def _findings_refusal(folder: str) -> SettingError:
    expected = "none: the local mode names the first fault, Spark writes all"
    return SettingError("findings", folder, expected)


def _require_local(requests: Sequence[VerifyRequest]) -> None:
    """Raise SettingError for what only Spark can do, and for what no mode can."""
    require_sound(requests)
    for request in requests:
        if request.master is not None:
            raise SettingError("master", request.master, "none: the local mode runs without Spark")
        if request.findings_folder is not None:
            raise _findings_refusal(request.findings_folder)
        for source in request.sources:
            if isinstance(source, ParquetSource):
                local_folder("parquet", source.path)


def _verified(request: VerifyRequest, progress: ShowStep) -> Report:
    with ExitStack() as opened:
        report = Verification(request, LocalMode(request, opened), progress).run()
    sources = (
        replace(one, notes=(*one.notes, FIRST_ONLY)) if one.counts else one
        for one in report.sources
    )
    return replace(report, sources=tuple(sources))


class LocalMode:
    """The steps of a verification in plain Python. Implements `verification.Mode`."""

    def __init__(self, request: VerifyRequest, opened: ExitStack) -> None:
        self._chain_id = request.chain_id
        self._start = request.start
        self._opened = opened
        self._database: StoredChain | None = None

    def open(self, source: Source) -> LocalTable:
        """Open a source, the database first; it is closed with the stack.

        pyarrow and aiokafka, large installations, are imported only if needed.
        """
        if isinstance(source, DatabaseSource):
            self._database = StoredChain(source, self._chain_id, self._start)
            self._opened.callback(self._database.close)
            return self._database
        if isinstance(source, TopicSource):
            from chain_verifier.local.topic import LocalTopicTable

            topic = LocalTopicTable(source, self._chain_id, self._database)
            self._opened.callback(topic.close)
            return topic
        if isinstance(source, JournalSource):
            return JournalRows(source)
        from chain_verifier.sources.parquet import ParquetRows

        return ParquetRows(source)

    examine = staticmethod(source_check.examine)
    rows_beyond = staticmethod(source_check.rows_beyond)
    compare = staticmethod(comparison.compare)

    def forged_findings(self, topic: LocalTable, base: LocalTable, horizon: Horizon) -> Findings:
        """Return the first row of a forged frame that `base` does not hold as it is there."""
        from chain_verifier.local.topic import LocalTopicTable

        if not isinstance(topic, LocalTopicTable):
            return Findings()
        return comparison.forged_findings(topic, base, horizon)

    def check_seals(self, table: LocalTable, kept: Sequence[KeptSeal]) -> Findings:
        """Recompute the seals of the database."""
        if not isinstance(table, StoredChain):
            return Findings()
        return check_seals(table, self._chain_id, kept)

    def repeated_keys(
        self, table: LocalTable, horizon: Horizon, window_rows: int, how: ScanPlan
    ) -> Findings:
        """Return the first row whose key an earlier row has."""
        return source_check.repeated_keys(table, horizon, window_rows)

    def write_findings(self, findings: Findings, folder: str) -> None:
        """Raise SettingError, as every start does: only the first findings are known here."""
        raise _findings_refusal(folder)
