"""Queries over streams of the data source, begun and ended.

Spark gives the Python of a stream ten seconds to start, which no setting changes. On a busy machine
that is not enough, and the query fails before its first batch. It is started again then, as a user
would: with its checkpoint it goes on exactly where it was.
"""

from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.deadlines import Deadline

_IS_LATE = "failed to connect back"


def is_late(query: StreamingQuery) -> bool:
    """Return whether the Python of a stream did not start in time. Raises what else failed."""
    error = query.exception()
    if error is not None and _IS_LATE not in str(error):
        raise error
    return error is not None


def run_to_end(writer: DataStreamWriter) -> None:
    """Run a query until all that is there is written. Raises what ends it, PySparkException."""
    bound = Deadline()
    while True:
        try:
            writer.start().awaitTermination()
            return
        except PySparkException as error:
            if _IS_LATE not in str(error) or bound.left() <= 0:
                raise
