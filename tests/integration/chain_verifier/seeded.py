"""Which seeds the seeded tests run through, and what each of them makes."""

import os

SETS = int(os.environ.get("SEEDED_SETS", "30"))
FIRST = int(os.environ.get("SEEDED_FIRST", "1"))
SPARK_EVERY = int(os.environ.get("SEEDED_SPARK_EVERY", "4"))
SEEDS = range(FIRST, FIRST + SETS)


def is_parquet(seed: int) -> bool:
    return seed % 10 < 5


def is_journal(seed: int) -> bool:
    return 5 <= seed % 10 < 8


def is_for_spark(seed: int) -> bool:
    """Whether a set of rows goes through Spark, too; topics all do."""
    return (seed + seed // 10) % SPARK_EVERY == 0


def is_topic(seed: int) -> bool:
    return seed % 10 >= 8
