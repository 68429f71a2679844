"""Several chains in one run, in one Spark: each with its own sources, verdict and findings."""

import random
from pathlib import Path

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from chain_kernel.errors import InputError, SettingError
from chain_verifier.config import DatabaseSource, JournalSource, VerifyRequest
from chain_verifier.local.verify import verify_chains_locally
from chain_verifier.report import Report, Unverified, Verdict
from chain_verifier.spark.verify import verify_chains
from tests.integration.chain_verifier.agreement import require_agreement
from tests.integration.chain_verifier.planted_faults import chain_of, head_of, write_journal


def request_of(
    folder: Path, chain_id: int, *, lacks: int | None = None, of: int | None = None
) -> VerifyRequest:
    """A chain whose journal lacks a row, or holds rows `of` another chain."""
    rows = [replace(row, chain_id=of or chain_id) for row in chain_of(random.Random(chain_id), 30)]
    kept = [row for number, row in enumerate(rows) if number != lacks]
    path = write_journal(folder / f"{chain_id}.jsonl", kept)
    source = JournalSource(path=str(path))
    return VerifyRequest(chain_id=chain_id, sources=(source,), head=head_of(rows))


def test_chains_with_each_another_outcome_are_kept_apart_by_both_modes(
    spark: SparkSession, tmp_path: Path
) -> None:
    known = Unverified(chain_id=5, is_refused=False, reason="known before")
    away = DatabaseSource(database="postgresql://auditor:sesame@127.0.0.1:1/x")
    chains: list[VerifyRequest | Unverified] = [
        request_of(tmp_path, 1),
        request_of(tmp_path, 2, lacks=9),
        request_of(tmp_path, 3, of=8),
        VerifyRequest(chain_id=4, sources=(away,)),
        known,
    ]
    by_spark = verify_chains(chains, spark)
    locally = verify_chains_locally(chains)
    for report in (by_spark, locally):
        clean, broken, foreign, unreachable, kept = report.outcomes
        assert isinstance(clean, Report)
        assert isinstance(broken, Report)
        assert (clean.verdict, broken.verdict) == (Verdict.COMPLETE, Verdict.BROKEN)
        assert broken.counts == {"gap": 1}
        assert isinstance(foreign, Unverified)
        assert isinstance(unreachable, Unverified)
        assert (foreign.is_refused, unreachable.is_refused) == (True, True)
        assert "none of chain 3" in foreign.reason
        assert "sesame" not in unreachable.reason
        assert kept is known
    for one, other in zip(locally.reports, by_spark.reports, strict=True):
        require_agreement(one, other)


def test_chains_with_what_cannot_be_used_are_refused_before_anything_is_read(
    tmp_path: Path,
) -> None:
    whole = request_of(tmp_path, 1)
    missing = JournalSource(path=str(tmp_path / "missing"))
    for wrong, error in (
        (VerifyRequest(chain_id=2, sources=(missing,)), InputError),
        (VerifyRequest(chain_id=2, sources=whole.sources * 2), SettingError),
        (VerifyRequest(chain_id=2, sources=whole.sources, seals=True), SettingError),
    ):
        with pytest.raises(error):
            verify_chains([whole, wrong])
        with pytest.raises(error):
            verify_chains_locally([whole, wrong])
