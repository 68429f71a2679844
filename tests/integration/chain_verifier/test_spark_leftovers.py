"""What a test of Spark leaves does not come to its end in a later test.

PySpark closes the socket of a result when it was read to its end. One that an error cuts off is
held by the error's traceback, which is a circle: the collector alone ends it, and a socket that is
not closed is a warning, and so an error, of the test in which that happens.
"""

from __future__ import annotations

import gc
import socket
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import ref

import pytest

from tests.conftest import pytest_leave_nothing_of_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def leave_a_socket(spark: SparkSession) -> ref[socket.socket]:
    """Do as a test that an error cuts off in the midst of a result."""

    def sockets() -> dict[int, socket.socket]:
        return {id(each): each for each in gc.get_objects() if isinstance(each, socket.socket)}

    def read() -> None:
        before = sockets()
        for _ in spark.range(1_000).toLocalIterator():
            (new,) = (each for key, each in sockets().items() if key not in before)
            left.append(ref(new))
            raise ValueError("in the midst")

    left: list[ref[socket.socket]] = []
    with pytest.raises(ValueError, match="midst") as caught:
        read()
    error = caught.value
    assert error.__traceback__ is not None  # the frame of this function is in it: a circle
    return left[0]


def test_socket_of_a_result_that_an_error_cut_off_is_closed_when_its_test_ends(
    spark: SparkSession, request: pytest.FixtureRequest
) -> None:
    gc.disable()
    try:
        left = leave_a_socket(spark)
        assert left() is not None, "nothing but the collector ends it"
        end_of_test = pytest_leave_nothing_of_spark(request.node)
        next(end_of_test)
        with suppress(StopIteration):
            next(end_of_test)
        assert left() is None
    finally:
        gc.enable()
