"""What Spark needs beside itself: packages of Java, by their names in Maven."""

from typing import Final

POSTGRESQL_JDBC: Final = "org.postgresql:postgresql:42.7.11"
"""The JDBC driver; needs nothing else."""

JDBC_DRIVER: Final = "org.postgresql.Driver"
