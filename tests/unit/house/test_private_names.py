"""The private names of libraries that the product uses are there.

A library may drop such a name in any release. So they are listed here; asyncpg and aiokafka have
upper bounds in `pyproject.toml`; and this fails as soon as one of them is gone.
"""

import asyncio
from typing import Any, Final

import aiokafka
import aiokafka.admin
import aiokafka.client
import aiokafka.conn
import asyncpg
import click
import pyarrow.parquet as pq
import pyspark
import pytest
from aiokafka.consumer.fetcher import Fetcher, PartitionRecords
from aiokafka.record.default_records import _DefaultRecordBatchPy
from py4j.java_gateway import JavaGateway
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import SparkSession
from pyspark.sql.connect.client.core import SparkConnectClient

from chain_kernel.testing.virtual_loop import VirtualLoop

LOOP_INIT: Final = asyncio.BaseEventLoop.__init__

PRIVATE: Final[dict[str, tuple[Any, ...]]] = {
    # The other end of the connection while commits are pipelined.
    "_protocol": (asyncpg.Connection, aiokafka.conn.AIOKafkaConnection.__init__),
    "_transport": (asyncpg.Connection, asyncio.StreamReaderProtocol.__init__),
    # What a stop that was cut off leaves open.
    "_client": (aiokafka.AIOKafkaConsumer.__init__, aiokafka.admin.AIOKafkaAdminClient.__init__),
    "_conns": (aiokafka.client.AIOKafkaClient.__init__,),
    "_sync_task": (aiokafka.client.AIOKafkaClient.__init__,),
    # An answer with a record that cannot be read.
    "_fetcher": (aiokafka.AIOKafkaConsumer.start,),
    "_records": (PartitionRecords.__init__,),
    "_records_iterator": (PartitionRecords.__init__,),
    "_unpack_records": (PartitionRecords,),
    "_tp": (PartitionRecords.__init__,),
    "_buffer": (_DefaultRecordBatchPy.__init__,),
    "_maybe_uncompress": (_DefaultRecordBatchPy,),
    # Java's own classes behind a session of Spark.
    "_jvm": (SparkSession.__init__,),
    "_jsparkSession": (SparkSession.__init__,),
    "_gateway": (pyspark.SparkContext,),
    "_gateway_client": (JavaGateway.set_gateway_client,),
    # Bounds of a number, in a help.
    "_describe_range": (click.IntRange,),
    # Where a session over Connect leads to.
    "_builder": (SparkConnectClient.__init__,),
    "_origin": (CapturedException.__init__,),
    # The loop in virtual time: for simulations alone.
    "_ready": (LOOP_INIT,),
    "_scheduled": (LOOP_INIT, asyncio.TimerHandle),
    "_when": (asyncio.TimerHandle,),
    "_run": (asyncio.Handle,),
    "_context": (asyncio.Handle,),
}
"""By name: classes that have it or functions that use or set it."""

UNDOCUMENTED: Final = (
    (asyncpg.protocol.Protocol, "connection_lost"),
    (asyncpg.protocol.Protocol, "get_settings"),
    (aiokafka.conn.AIOKafkaConnection, "close"),
    (pq.ParquetFile.__init__, "reader"),
    (pq.ParquetReader, "iter_batches"),
    (aiokafka.AIOKafkaProducer.__init__, "client"),
    (aiokafka.client.AIOKafkaClient._metadata_update, "MetadataRequest"),
    *(
        (Fetcher._proc_fetch_request, name)
        for name in ("MemoryRecords", "PartitionRecords", "FetchResult")
    ),
)
REPLACED: Final = ("_run_once", "_process_events", "_write_to_self")
"""What the loop in virtual time puts in the place of asyncio's own."""


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        *((owner, name) for name, owners in PRIVATE.items() for owner in owners),
        *UNDOCUMENTED,
        *((asyncio.BaseEventLoop, name) for name in REPLACED),
    ],
)
def test_name_is_there_in_the_installed_library(owner: Any, name: str) -> None:
    code = getattr(owner, "__code__", None)  # attributes of objects need not be made
    assert hasattr(owner, name) if code is None else name in code.co_names


def test_virtual_loop_replaces_what_it_says() -> None:
    assert vars(VirtualLoop).keys() >= set(REPLACED)
