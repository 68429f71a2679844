import subprocess
import sys

import pytest

from chain_kernel.errors import SettingError
from chain_verifier.config import (
    BUCKETS_MAX,
    LEAF_BITS,
    DatabaseSource,
    JournalSource,
    ParquetSource,
    TopicSource,
    bucket_bits,
    parse_source,
)

DSN = "postgresql://auditor:sesame@h/d"


def test_source_with_each_form_is_parsed() -> None:
    assert parse_source("database", DSN) == DatabaseSource(database=DSN)
    assert parse_source("journal:a:b.jsonl", None) == JournalSource(path="a:b.jsonl")
    assert parse_source("parquet:s3a://b/c", None) == ParquetSource(path="s3a://b/c")


@pytest.mark.parametrize(
    "text", ["", "journal", "journal:", "parquet:", "database:x", "topic:", "x:y"]
)
def test_source_with_another_form_is_refused_with_the_forms_there_are(text: str) -> None:
    with pytest.raises(SettingError, match="topic, topic:NAME, journal:FILE or parquet:PATH"):
        parse_source(text, DSN)


@pytest.mark.parametrize(("text", "topic"), [("topic", None), ("topic:t:u", "t:u")])
def test_source_with_a_topic_takes_its_name_and_the_servers(text: str, topic: str | None) -> None:
    assert parse_source(text, None, "k:9092") == TopicSource(kafka="k:9092", topic=topic)


def test_source_with_a_password_never_shows_it() -> None:
    assert "sesame" not in repr(DatabaseSource(database=DSN))


@pytest.mark.parametrize("span", [0, 1, 4096, 10**6, 10**9, 2**40, 2**63])
def test_bucket_bits_with_any_span_gives_few_buckets(span: int) -> None:
    bits = bucket_bits(span)
    assert bits >= LEAF_BITS
    assert span >> bits <= BUCKETS_MAX


def test_config_when_imported_brings_no_spark() -> None:
    code = (
        "import sys, chain_verifier.config, chain_verifier.report\n"
        "assert 'pyspark' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
