"""The jars that Spark needs beside itself."""

from __future__ import annotations

from typing import Final

import pyspark

POSTGRESQL_JDBC: Final = "org.postgresql:postgresql:42.7.11"
"""The JDBC driver; needs nothing else."""

OWN_JARS: Final = ("org.apache.hadoop:hadoop-client-api", "org.apache.hadoop:hadoop-client-runtime")
"""What the Kafka connector asks for, and Spark brings along itself: 50 MB that need no fetching."""


def kafka_connector() -> str:
    """Return the Kafka connector of the Spark that is installed; other versions do not load."""
    return f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"


def packages_for(*, kafka: bool) -> tuple[str, ...]:
    """Return what a verification needs: of a topic the Kafka connector too, which starts slower."""
    return (POSTGRESQL_JDBC, kafka_connector()) if kafka else (POSTGRESQL_JDBC,)
