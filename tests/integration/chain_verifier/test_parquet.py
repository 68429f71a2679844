"""Parquet: rows of any order, columns of the right names and types."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from chain_kernel.errors import InputError, SourceBroken
from chain_verifier.config import ParquetSource, VerifyRequest
from chain_verifier.local.verify import verify_locally
from chain_verifier.report import Report, Verdict
from chain_verifier.spark.verify import verify
from tests.integration.chain_verifier.agreement import verified_by_both
from tests.integration.chain_verifier.parquet_layouts import OTHER_LAYOUTS, write_layout
from tests.integration.chain_verifier.planted_faults import CHAIN_ID, Row, chain_of, head_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

ROWS = chain_of(random.Random(6), 60)


def verified(spark: SparkSession, source: ParquetSource, head: int | None = None) -> Report:
    return verify(VerifyRequest(chain_id=CHAIN_ID, sources=(source,), head=head), spark)


def test_parquet_with_a_clean_chain_is_contiguous_and_with_its_head_complete(
    spark: SparkSession, parquet_of: Callable[[Sequence[Row]], ParquetSource]
) -> None:
    source = parquet_of(random.Random(1).sample(ROWS, len(ROWS)))
    report = verified(spark, source)
    assert report.is_clean
    assert report.verdict is Verdict.CONTIGUOUS
    assert (report.sources[0].first_id, report.sources[0].last_id) == (ROWS[0].id, ROWS[-1].id)
    assert verified(spark, source, head_of(ROWS)).verdict is Verdict.COMPLETE


@pytest.mark.merge
def test_parquet_with_a_missing_row_names_it(
    spark: SparkSession, parquet_of: Callable[[Sequence[Row]], ParquetSource]
) -> None:
    report = verified(spark, parquet_of([*ROWS[:7], *ROWS[8:]]))
    (finding,) = report.findings
    assert finding.text.startswith(f"order {ROWS[7].id} is missing")
    assert any(finding.text in line for line in report.lines())


def test_parquet_with_narrower_and_wider_integers_is_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "rows")
    spark.sql(
        "SELECT 7L AS chain_id, cast(id + 1 AS int) AS id, cast(id AS int) AS pid,"
        " 'k' AS key, 1L AS event_time_ns, X'00' AS payload FROM range(9)"
    ).write.parquet(path)
    assert verified(spark, ParquetSource(path=path), 9).verdict is Verdict.COMPLETE


def test_parquet_as_other_writers_lay_it_out_is_the_same_to_both_modes(
    spark: SparkSession, tmp_path: Path
) -> None:
    for name in OTHER_LAYOUTS:
        write_layout(name, tmp_path / name, ROWS)
        source = ParquetSource(path=str(tmp_path / name))
        request = VerifyRequest(chain_id=CHAIN_ID, sources=(source,), head=head_of(ROWS))
        assert verified_by_both(request, spark).verdict is Verdict.COMPLETE, name
    write_layout("dictionary", tmp_path / "folders", ROWS)
    for verify_it in (lambda request: verify(request, spark), verify_locally):
        source = ParquetSource(path=str(tmp_path / "folders"))
        with pytest.raises(InputError, match="not every file is in a folder chain_id=N"):
            verify_it(VerifyRequest(chain_id=CHAIN_ID, sources=(source,)))


def test_parquet_with_a_column_missing_or_of_another_type_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = spark.sql(
        "SELECT 7 AS chain_id, id, id AS pid, 'k' AS key, 1L AS event_time_ns,"
        " X'00' AS payload FROM range(1)"
    )
    frame.drop("payload").write.parquet(str(tmp_path / "a"))
    frame.selectExpr("* except (key)", "1 AS key").write.parquet(str(tmp_path / "b"))
    with pytest.raises(InputError, match="column payload was not given, expected the type binary"):
        verified(spark, ParquetSource(path=str(tmp_path / "a")))
    with pytest.raises(InputError, match="column key was 'int', expected the type string"):
        verified(spark, ParquetSource(path=str(tmp_path / "b")))


def test_parquet_with_no_file_or_another_format_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "text").write_text("no Parquet")
    for name in ("missing", "text"):
        with pytest.raises(InputError, match=r"^parquet was "):
            verified(spark, ParquetSource(path=str(tmp_path / name)))


def test_parquet_that_breaks_off_is_no_verdict(
    spark: SparkSession, parquet_of: Callable[[Sequence[Row]], ParquetSource]
) -> None:
    from pathlib import Path

    source = parquet_of(ROWS)
    (part,) = Path(source.path).glob("*.parquet")
    content = bytearray(part.read_bytes())
    content[4 : len(content) // 2] = bytes(len(content) // 2 - 4)
    part.write_bytes(content)
    for checksum in Path(source.path).glob(".*.crc"):
        checksum.unlink()
    with pytest.raises(SourceBroken):
        verified(spark, source)
