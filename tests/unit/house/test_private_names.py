"""The private names of libraries that the product uses: which, where, and that they are there.

A library may drop such a name in any release. So they are listed here, once; asyncpg and aiokafka
have upper bounds in `pyproject.toml`; and this fails as soon as one of them is gone.
"""

from __future__ import annotations

import ast
import asyncio
import re
from typing import TYPE_CHECKING, Any, Final

import aiokafka
import aiokafka.admin
import aiokafka.client
import aiokafka.conn
import asyncpg
import pyspark
import pytest
from py4j.java_gateway import JavaGateway
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import SparkSession
from pyspark.sql.connect.client.core import SparkConnectClient

from chain_kernel.testing.virtual_loop import VirtualLoop
from tests.sources import PRODUCT, modules

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDERS: Final = (*PRODUCT, "benchmarks", "examples")

KAFKA: Final = "chain_kernel/clients/kafka.py"
PIPELINE: Final = "chain_kernel/clients/pipeline.py"
POSTGRES: Final = "chain_kernel/clients/postgres.py"
LOOP: Final = "chain_kernel/testing/virtual_loop.py"
OWN_SESSION: Final = "chain_verifier/spark/own_session.py"
SESSION: Final = "chain_verifier/spark/session.py"
LOOP_INIT: Final = asyncio.BaseEventLoop.__init__

PRIVATE: Final[dict[str, tuple[tuple[str, ...], tuple[Any, ...]]]] = {
    # The other end of the connection while commits are pipelined.
    "_protocol": (
        (PIPELINE, POSTGRES, KAFKA),
        (asyncpg.Connection, aiokafka.conn.AIOKafkaConnection.__init__),
    ),
    "_transport": (
        (PIPELINE, KAFKA), (asyncpg.Connection, asyncio.StreamReaderProtocol.__init__)
    ),
    # What a stop that was cut off leaves open.
    "_client": (
        (KAFKA,),
        (aiokafka.AIOKafkaConsumer.__init__, aiokafka.admin.AIOKafkaAdminClient.__init__),
    ),
    "_conns": ((KAFKA,), (aiokafka.client.AIOKafkaClient.__init__,)),
    "_sync_task": ((KAFKA,), (aiokafka.client.AIOKafkaClient.__init__,)),
    # Java's own classes behind a session of Spark.
    "_jvm": ((SESSION,), (SparkSession.__init__,)),
    "_jsparkSession": ((OWN_SESSION,), (SparkSession.__init__,)),
    "_gateway": ((SESSION,), (pyspark.SparkContext,)),
    "_gateway_client": ((SESSION,), (JavaGateway.set_gateway_client,)),
    # Where a session over Connect leads to.
    "_builder": ((OWN_SESSION,), (SparkConnectClient.__init__,)),
    "_origin": (("chain_verifier/spark/errors.py",), (CapturedException.__init__,)),
    # The loop in virtual time: for simulations alone.
    "_ready": ((LOOP,), (LOOP_INIT,)),
    "_scheduled": ((LOOP,), (LOOP_INIT, asyncio.TimerHandle)),
    "_when": ((LOOP,), (asyncio.TimerHandle,)),
    "_run": ((LOOP,), (asyncio.Handle,)),
    "_context": ((LOOP,), (asyncio.Handle,)),
}  # fmt: skip
"""By name: the modules that use it, and classes that have it or functions that use or set it."""

UNDOCUMENTED: Final = (
    (asyncpg.protocol.Protocol, "connection_lost"),
    (asyncpg.protocol.Protocol, "get_settings"),
    (aiokafka.conn.AIOKafkaConnection, "close"),
    (aiokafka.AIOKafkaProducer.__init__, "client"),
)
REPLACED: Final = ("_run_once", "_process_events", "_write_to_self")
"""What the loop in virtual time puts in the place of asyncio's own."""

DOCUMENTED: Final = {"_replace", "_asdict", "_fields", "_make"}
"""Names of named tuples: they begin with an underscore so as not to meet a field's name."""

MAY_USE: Final = re.compile(r"(?<!\bself)(?<!\bcls)\._[a-z]|\"_[a-z]|import .*\b_[a-z]")
"""Modules without a match are not parsed."""


def is_private(name: object) -> bool:
    """Say whether it is a name with one underscore before it."""
    is_name = isinstance(name, str) and name.isidentifier() and len(name) > 1
    return is_name and str(name).startswith("_") and not str(name).startswith("__")


def own_names(tree: ast.Module) -> set[str]:
    """Return what the module itself defines: functions, methods, classes, attributes of `self`."""
    return {
        node.attr if isinstance(node, ast.Attribute) else node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        or (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
    }


def used_names(node: ast.AST) -> Iterator[str]:
    """Yield the names that `node` uses of another object, by a dot, `getattr` or an import."""
    match node:
        case ast.Attribute(value=base, attr=name):
            pass
        case ast.Call(
            func=ast.Name(id="getattr" | "setattr" | "hasattr"),
            args=[base, ast.Constant(value=str(name)), *_],
        ):
            pass
        case ast.ImportFrom(module=module, names=names) if module != "_typeshed":
            yield from ((module or "").split(".") + [alias.name for alias in names])
            return
        case ast.Import(names=names):
            yield from (part for alias in names for part in alias.name.split("."))
            return
        case _:
            return
    if not (isinstance(base, ast.Name) and base.id in {"self", "cls"}):
        yield name


def is_import_of_ours(node: ast.AST) -> bool:
    return isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in FOLDERS


def test_private_names_of_libraries_are_used_where_the_list_says_and_nowhere_else() -> None:
    found = set()
    for module in filter(lambda each: MAY_USE.search(each.text), modules(*FOLDERS)):
        own = own_names(module.tree)  # by a second object of a class of ours
        found |= {
            (module.name, name)
            for node in ast.walk(module.tree)
            if not is_import_of_ours(node)
            for name in used_names(node)
            if is_private(name) and name not in DOCUMENTED
            if name in PRIVATE or name not in own
        }
    assert found == {(module, name) for name, (where, _) in PRIVATE.items() for module in where}


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        *((owner, name) for name, (_, owners) in PRIVATE.items() for owner in owners),
        *UNDOCUMENTED,
        *((asyncio.BaseEventLoop, name) for name in REPLACED),
    ],
)
def test_name_is_there_in_the_installed_library(owner: Any, name: str) -> None:
    code = getattr(owner, "__code__", None)  # attributes of objects need not be made
    assert hasattr(owner, name) if code is None else name in code.co_names


def test_virtual_loop_replaces_what_it_says() -> None:
    assert vars(VirtualLoop).keys() >= set(REPLACED)
