"""Seeded data sets: Spark finds every planted fault by its exact ids, and nothing else; the local
mode finds the first one.

    SEEDED_SETS=1000 python -m pytest tests/integration/chain_verifier -k seeded

is the long form; `SEEDED_FIRST=n` begins with another seed. Half of the sets are Parquet, three in
ten journals, the others topics (`test_seeded_servers.py`). Every set of rows goes
through the local mode, damaged and clean; one in `SEEDED_SPARK_EVERY` (4; 1 for all, at a second or
two each) through one Spark session, too.
"""

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from chain_verifier.config import JournalSource, ParquetSource, Source, VerifyRequest
from chain_verifier.local.verify import verify_locally
from chain_verifier.report import Verdict
from chain_verifier.spark.verify import verify
from tests.integration.chain_verifier.agreement import require_first
from tests.integration.chain_verifier.planted_faults import CHAIN_ID, Row, write_journal
from tests.integration.chain_verifier.seeded import SEEDS, is_for_spark, is_journal, is_parquet
from tests.integration.chain_verifier.seeded_rows import plant_rows, shown, write_parquet
from tests.lanes import at_night

CLEAN_BY_SPARK_EVERY = 5
"""So many of the sets that go through Spark go through it clean, too."""


def source_of(folder: Path, rows: Sequence[Row], seed: int) -> Source:
    if is_journal(seed):
        return JournalSource(path=str(write_journal(folder / "j.jsonl", rows)))
    rng = random.Random(f"order {seed}")
    return ParquetSource(path=str(write_parquet(folder / "r.parquet", rows, rng)))


def request_of(source: Source, head: int, seed: int) -> VerifyRequest:
    """Small buckets of several widths, so that faults lie on their bounds, too."""
    rng = random.Random(f"buckets {seed}")
    bits = rng.randint(3, 9)
    return VerifyRequest(
        chain_id=CHAIN_ID,
        sources=(source,),
        head=head,
        bucket_bits=bits,
        leaf_bits=rng.randint(2, bits),
    )


FILES = [seed for seed in SEEDS if is_parquet(seed) or is_journal(seed)]


@pytest.mark.guarantee("G12")
@pytest.mark.parametrize("seed", [*FILES[:3], *at_night(*FILES[3:])])
def test_seeded_rows_give_every_planted_fault_and_nothing_else(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    planted = plant_rows(seed, has_order=is_journal(seed))
    source = source_of(tmp_path, planted.rows, seed)
    request = request_of(source, planted.head, seed)
    locally = verify_locally(request)
    assert locally.verdict is Verdict.BROKEN, f"seed {seed}"
    require_first(locally.findings, planted.findings(source.name))
    if is_for_spark(seed):
        report = verify(request, session=spark)
        assert report.verdict is Verdict.BROKEN, f"seed {seed}"
        assert Counter(map(shown, report.findings)) == Counter(planted.expected), f"seed {seed}"

    clean = request_of(source_of(tmp_path, planted.clean, seed), planted.head, seed)
    reports = [verify_locally(clean)]
    if is_for_spark(seed) and seed // 10 % CLEAN_BY_SPARK_EVERY == 0:
        reports.append(verify(clean, session=spark))
    for report in reports:
        assert (report.verdict, report.findings) == (Verdict.COMPLETE, ()), f"seed {seed}"
