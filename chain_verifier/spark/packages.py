"""What Spark needs beside itself: packages of Java, by their names in Maven."""

from __future__ import annotations

import re
from typing import Final

import pyspark

POSTGRESQL_JDBC: Final = "org.postgresql:postgresql:42.7.11"
"""The JDBC driver; needs nothing else."""

JDBC_DRIVER: Final = "org.postgresql.Driver"

NO_KAFKA: Final = "Failed to find data source: kafka"
"""What Spark says without its connector for Kafka."""

OWN_JARS: Final = ("org.apache.hadoop:hadoop-client-api", "org.apache.hadoop:hadoop-client-runtime")
"""What the Kafka connector requires, and Spark already includes: 50 MB that need no fetching."""


_RELEASE: Final = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+")


def kafka_connector(version: str = pyspark.__version__) -> str:
    """Return the Kafka connector of a Spark; those of other versions do not load.

    A vendor's version, such as `4.0.1-x.2`, is that of the release that it is made from.
    """
    release = _RELEASE.match(version)
    return f"org.apache.spark:spark-sql-kafka-0-10_2.13:{release[0] if release else version}"


def packages_for(*, kafka: bool) -> tuple[str, ...]:
    """Return what a verification needs; a topic also needs the Kafka connector: a slower start."""
    return (POSTGRESQL_JDBC, kafka_connector()) if kafka else (POSTGRESQL_JDBC,)
