"""The private names of libraries that the product uses: which, where, and that they are there.

A library may drop such a name in any release. So they are listed here, once; asyncpg and aiokafka
have upper bounds in `pyproject.toml`; and this fails as soon as one of them is gone.
"""

from __future__ import annotations

import ast
import asyncio
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import aiokafka
import aiokafka.admin
import aiokafka.client
import aiokafka.conn
import asyncpg
import pyspark
import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from py4j.java_gateway import JavaGateway
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import SparkSession

from chain_kernel.testing.virtual_loop import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT: Final = Path(__file__).parents[3]
PRODUCT: Final = (
    "orderchain", "chain_kernel", "sequencer", "matcher_receiver", "gapfill", "outbox",
    "chain_verifier",
    "chainctl", "orderchain_demo", "local_stack", "benchmarks", "examples",
)  # fmt: skip


def names_in(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the attributes that a function reads or sets: those of objects need not be made."""
    return function.__code__.co_names


@dataclass(frozen=True)
class Private:
    """A private name of a library, the modules that use it, and whether it is there."""

    modules: set[str]
    is_there: Callable[[], bool]


PRIVATE: Final = {
    # The other end of the connection while commits are pipelined.
    "_protocol": Private(
        {
            "chain_kernel/clients/pipeline.py",
            "chain_kernel/clients/postgres.py",
            "chain_kernel/clients/kafka.py",
        },
        lambda: (
            hasattr(asyncpg.Connection, "_protocol")
            and hasattr(asyncpg.protocol.Protocol, "connection_lost")
            and hasattr(asyncpg.protocol.Protocol, "get_settings")
            and "_protocol" in names_in(aiokafka.conn.AIOKafkaConnection.__init__)
        ),
    ),
    "_transport": Private(
        {"chain_kernel/clients/pipeline.py", "chain_kernel/clients/kafka.py"},
        lambda: (
            hasattr(asyncpg.Connection, "_transport")
            and "_transport" in names_in(asyncio.StreamReaderProtocol.__init__)
        ),
    ),
    # What a stop that was cut off leaves open. Producers name their client in public.
    "_client": Private(
        {"chain_kernel/clients/kafka.py"},
        lambda: (
            "_client" in names_in(aiokafka.AIOKafkaConsumer.__init__)
            and "_client" in names_in(aiokafka.admin.AIOKafkaAdminClient.__init__)
            and "client" in names_in(aiokafka.AIOKafkaProducer.__init__)
        ),
    ),
    "_conns": Private(
        {"chain_kernel/clients/kafka.py"},
        lambda: (
            "_conns" in names_in(aiokafka.client.AIOKafkaClient.__init__)
            and hasattr(aiokafka.conn.AIOKafkaConnection, "close")
        ),
    ),
    "_sync_task": Private(
        {"chain_kernel/clients/kafka.py"},
        lambda: "_sync_task" in names_in(aiokafka.client.AIOKafkaClient.__init__),
    ),
    # Java's own classes behind a session of Spark.
    "_jvm": Private(
        {
            "chain_verifier/spark/finding_frame.py",
            "chain_verifier/spark/session.py",
        },
        lambda: "_jvm" in names_in(SparkSession.__init__),
    ),
    "_jsc": Private(
        {"chain_verifier/spark/finding_frame.py"},
        lambda: "_jsc" in names_in(pyspark.SparkContext._do_init),
    ),
    "_gateway": Private(
        {"chain_verifier/spark/session.py"},
        lambda: hasattr(pyspark.SparkContext, "_gateway"),
    ),
    "_gateway_client": Private(
        {"chain_verifier/spark/session.py"},
        lambda: "_gateway_client" in names_in(JavaGateway.set_gateway_client),
    ),
    "_origin": Private(
        {"chain_verifier/spark/errors.py"},
        lambda: "_origin" in names_in(CapturedException.__init__),
    ),
    # The loop in virtual time: for simulations alone.
    "_ready": Private(
        {"chain_kernel/testing/virtual_loop.py"},
        lambda: "_ready" in names_in(asyncio.BaseEventLoop.__init__),
    ),
    "_scheduled": Private(
        {"chain_kernel/testing/virtual_loop.py"},
        lambda: (
            "_scheduled" in names_in(asyncio.BaseEventLoop.__init__)
            and hasattr(asyncio.TimerHandle, "_scheduled")
        ),
    ),
    "_when": Private(
        {"chain_kernel/testing/virtual_loop.py"}, lambda: hasattr(asyncio.TimerHandle, "_when")
    ),
    "_run": Private(
        {"chain_kernel/testing/virtual_loop.py"}, lambda: hasattr(asyncio.Handle, "_run")
    ),
    "_context": Private(
        {"chain_kernel/testing/virtual_loop.py"}, lambda: hasattr(asyncio.Handle, "_context")
    ),
}
"""By name. A module of ours may have attributes of the same name of its own, by `self`."""

OVERRIDDEN: Final = ("_run_once", "_process_events", "_write_to_self")
"""What the loop in virtual time puts in the place of asyncio's own."""

DOCUMENTED: Final = {"_replace", "_asdict", "_fields", "_make"}
"""Of named tuples: they begin with an underscore so as not to meet a field's name."""

STUBS: Final = {"_typeshed"}
"""Of type checkers; never imported when the program runs."""


@dataclass(frozen=True)
class Use:
    """One place where a private name of another object is used."""

    module: str
    line: int
    name: str
    is_defined_here: bool

    def __str__(self) -> str:
        return f"{self.module}:{self.line}: {self.name}"


@cache
def sources() -> list[tuple[str, ast.Module]]:
    paths = [path for package in PRODUCT for path in sorted((ROOT / package).rglob("*.py"))]
    return [(path.relative_to(ROOT).as_posix(), ast.parse(path.read_text())) for path in paths]


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


def used_name(node: ast.AST) -> str | None:
    """Return the private name of another object that `node` uses, by a dot or by `getattr`."""
    if isinstance(node, ast.Attribute) and is_private(node.attr):
        base = node.value
        return None if isinstance(base, ast.Name) and base.id in {"self", "cls"} else node.attr
    match node:
        case ast.Call(
            func=ast.Name(id="getattr" | "setattr" | "hasattr"),
            args=[base, ast.Constant(value=str(name)), *_],
        ) if is_private(name):
            return None if isinstance(base, ast.Name) and base.id == "self" else name
    return None


@cache
def uses() -> list[Use]:
    """Return where the product uses a private name of an object that is not `self`."""
    found = []
    for module, tree in sources():
        own = own_names(tree)
        for node in ast.walk(tree):
            name = used_name(node)
            if name is not None and name not in DOCUMENTED:
                line = node.lineno  # type: ignore[attr-defined]
                found.append(Use(module, line, name, name in own))
    return found


def is_listed(use: Use) -> bool:
    """Say whether a use is one of the list's, or of a name that its own module defines."""
    if use.name in PRIVATE:
        return use.module in PRIVATE[use.name].modules
    return use.is_defined_here  # a second object of a class of ours


def test_private_name_of_a_library_is_used_only_where_the_list_says() -> None:
    assert [str(use) for use in uses() if not is_listed(use)] == []


def test_list_names_nothing_that_is_not_used_any_more() -> None:
    listed = {(module, name) for name, private in PRIVATE.items() for module in private.modules}
    assert listed - {(use.module, use.name) for use in uses()} == set()


@pytest.mark.parametrize("name", PRIVATE)
def test_private_name_is_there_in_the_installed_library(name: str) -> None:
    assert PRIVATE[name].is_there()


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_method_that_the_virtual_loop_replaces_is_asyncios_own(name: str) -> None:
    assert hasattr(asyncio.BaseEventLoop, name)
    assert name in vars(VirtualLoop)


def test_nothing_private_is_imported_from_a_library() -> None:
    packages = {f"{package}." for package in PRODUCT}
    strange = []
    for module, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                path = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            elif isinstance(node, ast.Import):
                path = [part for alias in node.names for part in alias.name.split(".")]
            else:
                continue
            is_ours = f"{path[0]}." in packages
            if not is_ours and path[0] not in STUBS and any(map(is_private, path)):
                strange.append(f"{module}:{node.lineno}")
    assert strange == []


@pytest.mark.parametrize("library", ["asyncpg", "aiokafka"])
def test_library_whose_private_names_are_used_has_bounds_in_every_extra(library: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = {
        str(requirement.specifier)
        for extra in project["optional-dependencies"].values()
        for requirement in map(Requirement, extra)
        if requirement.name == library
    }
    (specifier,) = required  # the same in every extra
    assert {each.operator for each in SpecifierSet(specifier)} == {">=", "<"}
    assert SpecifierSet(specifier).contains(version(library))
