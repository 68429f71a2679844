"""The jars that Spark needs beside itself, and how they are fetched once.

Run as a program, `python -m chain_verifier.connectors` fetches them into Spark's own Ivy cache;
every later start of the verifier then works without a network.
"""

from __future__ import annotations

import sys
from typing import Final

import pyspark

from orderchain.errors import OrderchainError

POSTGRESQL_JDBC: Final = "org.postgresql:postgresql:42.7.11"
"""The JDBC driver; needs nothing else."""


def kafka_connector() -> str:
    """Return the Kafka connector of the Spark that is installed; other versions do not load."""
    return f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"


OWN_JARS: Final = ("org.apache.hadoop:hadoop-client-api", "org.apache.hadoop:hadoop-client-runtime")
"""What the Kafka connector asks for, and Spark brings along itself: 50 MB that need no fetching."""


def packages_for(*, kafka: bool) -> tuple[str, ...]:
    """Return what a verification needs: of a topic the Kafka connector too, which starts slower."""
    return (POSTGRESQL_JDBC, kafka_connector()) if kafka else (POSTGRESQL_JDBC,)


def main() -> int:
    """Fetch the connectors; one line before, one after. Returns an exit code."""
    from chain_verifier.session import open_session

    packages = ", ".join(packages_for(kafka=True))
    print(f"Fetching Spark's connectors ({packages}) ...", file=sys.stderr, flush=True)  # noqa: T201
    try:
        with open_session(None, kafka=True):
            pass
    except OrderchainError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 2
    print("Spark's connectors are there.", file=sys.stderr)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
