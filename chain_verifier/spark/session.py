"""Spark sessions of a verification: quiet, and on loopback.

One is started by this process, by `spark-submit`, or on a server of Spark Connect.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit
from weakref import WeakSet

import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext, java_gateway
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from chain_kernel.errors import ConnectError, RefusedError, SettingError
from chain_verifier.spark.errors import SPARK_ERRORS, spark_reason
from chain_verifier.spark.own_session import (
    ARROW_RECORDS,
    LEAVING_OUT_OF_HIVE,
    SETTINGS,
    own_session,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import FrameType
    from typing import BinaryIO

    SignalHandler = Callable[[int, FrameType | None], object]

MAJOR_MIN: Final = 17
"""Lowest version of Java that Spark 4 starts with."""

MODULE: Final = "jdk.incubator.vector"
"""Module that Spark 4 names on Java's command line; slimmed-down runtimes lack it."""

EXPECTED: Final = (
    f"Java {MAJOR_MIN} or newer with the module {MODULE} "
    "(Debian and Ubuntu: apt-get install default-jre-headless)"
)

_SPARK: Final = ".".join(pyspark.__version__.split(".")[:2])
_START_ERRORS: Final = (*SPARK_ERRORS, OSError, TypeError)
"""Errors of a start; TypeError where Java lacks a class of this version."""

_VERSION: Final = re.compile(r'^JAVA_VERSION="(?:1\.)?([0-9]+)', re.MULTILINE)
_MODULES: Final = re.compile(r'^MODULES="([^"]*)"', re.MULTILINE)


def require_java(environ: Mapping[str, str]) -> None:
    """Check the Java that Spark would start, by the `release` file of its installation.

    Without such a file, Spark finds out by itself.

    Raises:
        SettingError: there is no Java, it is too old, or it lacks a module.
    """
    program = _java_program(environ)
    if program is None:
        raise SettingError("java", environ.get("JAVA_HOME"), EXPECTED)
    release = program.resolve().parent.parent / "release"
    if release.is_file():
        _require_release(program, release.read_text(encoding="utf-8", errors="replace"))


def require_account() -> None:
    """Check that the account has a name: Hadoop's login and Java's home folder need one.

    Raises:
        SettingError: the account is a number alone.
    """
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:
        expected = "one with a line in /etc/passwd, which Spark needs; or --local"
        raise SettingError("account", os.geteuid(), expected) from None


def _java_program(environ: Mapping[str, str]) -> Path | None:
    """Return what Spark's launcher would run: `JAVA_HOME` first, then `PATH`."""
    home = environ.get("JAVA_HOME")
    if home:
        program = Path(home) / "bin" / "java"
        return program if program.is_file() else None
    found = shutil.which("java", path=environ.get("PATH"))
    return Path(found) if found else None


def _require_release(program: Path, release: str) -> None:
    version, modules = _VERSION.search(release), _MODULES.search(release)
    too_old = version is not None and int(version[1]) < MAJOR_MIN
    slimmed = modules is not None and MODULE not in modules[1].split()
    if too_old or slimmed:
        raise SettingError("java", str(program), EXPECTED)


def require_spark(environ: Mapping[str, str]) -> None:
    """Check the variables by which PySpark finds Spark.

    Raises:
        SettingError: they lead to another Spark, or to none.
    """
    home = environ.get("SPARK_HOME")
    if home and not list((Path(home) / "jars").glob(f"spark-core_*-{_SPARK}.*jar")):
        raise SettingError("SPARK_HOME", home, f"the folder of Spark {_SPARK}, or no such setting")
    if "pyspark-shell" not in environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell").split():
        expected = "options that end with pyspark-shell, or no such setting"
        raise SettingError("PYSPARK_SUBMIT_ARGS", "without pyspark-shell", expected)


LOCAL_MASTER: Final = "local[*]"

CONNECT: Final = "sc://"
_PORT: Final = 15_002
"""The port of a server of Connect, unless its URL has another."""
_KNOCK_SECONDS: Final = 10.0

LOG_FILE: Final = "spark.log"

_ENDING: Final = (signal.SIGINT, signal.SIGTERM)

_END_SECONDS: Final = 10.0
"""Seconds that Java has to clean up, before it is killed."""

_SHUFFLE_PARTITIONS: Final = 4
"""A check shuffles one row per bucket, so more partitions would only be more tasks to start."""

_NEEDED: Final = {
    **SETTINGS,
    # As in `SETTINGS`; a session cannot set them once Spark runs.
    **dict.fromkeys(LEAVING_OUT_OF_HIVE, "false"),
}
_COMMON: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": str(_SHUFFLE_PARTITIONS),
    # Plans here are small and known; planning them again after each stage costs more than it gains.
    "spark.sql.adaptive.enabled": "false",
    # The place in our code that made a column does not help, and took two of three calls to Java.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # Only buckets and samples reach the driver; code that wants more is wrong.
    "spark.driver.maxResultSize": "256m",
    # A catalog on disk would stay in the working directory.
    "spark.sql.catalogImplementation": "in-memory",
}
_LOCAL: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_LOCAL_ENVIRONMENT: Final = {
    # Else Spark looks up this machine's name, which may have no address.
    "SPARK_LOCAL_IP": "127.0.0.1",
    "SPARK_LOCAL_HOSTNAME": "127.0.0.1",
    "PYSPARK_PYTHON": sys.executable,
    "PYSPARK_DRIVER_PYTHON": sys.executable,
}
"""Variables of Java where it is ours, and reaches no other machine."""

_SHORT_RUN: Final = {"spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
"""Only Java's quick compiler: a check of a million rows ends before the thorough one has paid for
itself (measured: Spark's start and a first check of 200,000 rows take 18 s of CPU time, not 28)."""


_TEMPORARY: Final = WeakSet[SparkSession]()
"""Sessions whose own catalog and warehouse end with them."""


@contextmanager
def open_session(master: str | None, *, is_long_run: bool = False) -> Iterator[SparkSession]:
    """Start Spark, yield its session, stop it.

    - A process that has a session already gets one beside it, of the same Spark.
    - A `master` that begins with `sc://` is a server of Connect, as is `SPARK_REMOTE` without one.
    - Under `spark-submit`, its settings apply, but for those that every verification needs; a
      `master` given here takes precedence.
    - Else Spark runs in a Java process of our own, without a `master` on all cores of this machine,
      and tuned for a short run unless `is_long_run` is set. Its output goes to a file in a
      temporary folder, which is removed at the end.

    In a session that this starts, Ctrl-C raises KeyboardInterrupt at once, whatever Java does then.
    SIGTERM raises the error of a handler that was set before.

    Raises:
        SettingError: there is no Java, or Spark does not start.
        ConnectError: the server of Connect does not answer.
    """
    active = _open_elsewhere()
    if active is not None:
        with own_session(active) as own:
            yield own
        return
    if (master or "").startswith(CONNECT) or (master is None and "SPARK_REMOTE" in os.environ):
        with _connected(master) as session:
            yield session
        return
    if is_submitted(os.environ):
        with _signals_as_before(), _stopped(_submitted(master)) as session:
            yield session
        return
    require_java(os.environ)
    require_spark(os.environ)
    require_account()
    with tempfile.TemporaryDirectory(prefix="chain-verifier-") as folder:
        tuning = {} if is_long_run else _SHORT_RUN
        with (
            _signals_as_before(),
            _stopped(_start(master, Path(folder), tuning)) as session,
        ):
            _TEMPORARY.add(session)
            yield session


def loses_table(spark: SparkSession, table: str) -> bool:
    """Return whether a table that is made now ends with the session: in no catalog of the user."""
    if spark not in _TEMPORARY:
        return False
    first, dot, _ = table.partition(".")
    catalog = first.strip("`")
    if not dot or spark.conf.get(f"spark.sql.catalog.{catalog}", None) is None:
        catalog = spark.catalog.currentCatalog()
    return catalog == "spark_catalog"


@contextmanager
def _connected(remote: str | None) -> Iterator[SparkSession]:
    """Yield a session over Connect, and end it."""
    builder: Any = SparkSession.builder
    # What comes after the place may be a token.
    address, _, _ = (remote or os.environ["SPARK_REMOTE"]).partition("/;")
    try:
        if address.startswith(CONNECT):
            # The client itself would knock for ten minutes.
            place = urlsplit(address)
            socket.create_connection((place.hostname, place.port or _PORT), _KNOCK_SECONDS).close()
        session: SparkSession = (builder.remote(remote) if remote else builder).getOrCreate()
        for name, value in SETTINGS.items():
            session.conf.set(name, value)
    except ImportError as error:
        raise SettingError("master", address, f"orderchain[connect] ({error})") from error
    except (*SPARK_ERRORS, OSError) as error:
        expected = f"a server of Spark Connect that answers ({spark_reason(error)})"
        raise ConnectError("master", address, expected) from error
    try:
        yield session
    finally:
        session.stop()


def _open_elsewhere() -> SparkSession | None:
    """Return the session that this process has, whichever thread started it; None without one.

    "Active" is a property of a thread in Java: the session of another thread, or of a connection
    that was replaced, is not active here, and would be stopped as if it were our own.
    """
    try:
        return SparkSession.active()
    except PySparkRuntimeError:
        return None


@contextmanager
def _stopped(session: SparkSession) -> Iterator[SparkSession]:
    """Yield `session`, and stop it. An error of the stop hides none that came before."""
    if threading.current_thread() is threading.main_thread():
        # Its own handler asks Java on the connection whose answer the interrupted call waits for.
        signal.signal(signal.SIGINT, _leaving_call(signal.default_int_handler))
        usual = signal.getsignal(signal.SIGTERM)
        if callable(usual):
            signal.signal(signal.SIGTERM, _leaving_call(usual))
    try:
        yield session
    finally:
        with suppress(Py4JError, OSError):
            session.stop()


@contextmanager
def _signals_as_before() -> Iterator[None]:
    """Restore the handlers of signals: PySpark leaves one that asks a stopped session."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # None: not set by Python.
    usual = {number: signal.getsignal(number) or signal.SIG_DFL for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)


def _leaving_call(handler: SignalHandler) -> SignalHandler:
    def handle(number: int, frame: FrameType | None) -> None:
        drop_call()
        handler(number, frame)

    return handle


def drop_call() -> None:
    """Close this thread's connection to Java, so that the call under way can be left.

    The answer to that call stays in its connection. A later call, such as the one that stops Spark,
    would read it as its own, or wait for one that never comes. The next call opens a connection of
    its own. Does nothing without Java.
    """
    gateway: Any = SparkContext._gateway
    connection = gateway._gateway_client.get_thread_connection() if gateway is not None else None
    if connection is not None:
        connection.close()


def is_submitted(environ: Mapping[str, str]) -> bool:
    """Return whether `spark-submit` runs this process, whose Java is already running."""
    return "PYSPARK_GATEWAY_PORT" in environ


def _submitted(master: str | None) -> SparkSession:
    """Return the session of `spark-submit`: jars, memory and master are as given there."""
    builder: Any = SparkSession.builder
    if master:
        builder = builder.master(master)
    try:
        SparkContext._ensure_initialized()  # without Java, a SparkConf is empty
        given = SparkConf()
        left = {name: value for name, value in _COMMON.items() if not given.contains(name)}
        for name, value in (_NEEDED | left).items():
            builder = builder.config(name, value)
        session: SparkSession = builder.getOrCreate()
        _judge(session)
    except _START_ERRORS as error:
        # Its `SPARK_HOME` is judged by that alone: Java runs already, and is elsewhere on YARN.
        expected = f"a Spark {_SPARK} that starts"
        raise SettingError("spark-submit", spark_reason(error), expected) from error
    _prepare(session, is_local=False)
    return session


def _judge(session: SparkSession) -> None:
    """Have Spark read its settings of SQL, which it puts off; stop it where one is wrong."""
    try:
        session.conf.get(ARROW_RECORDS)
    except SPARK_ERRORS:
        session.stop()
        raise


def _prepare(session: SparkSession, *, is_local: bool) -> None:
    session.sparkContext.setLogLevel("ERROR")
    if is_local or "PYSPARK_PYTHON" not in os.environ:
        # Our own code unpacks frames and seals: the workers need exactly this environment.
        session.sparkContext.pythonExec = sys.executable


def _start(master: str | None, folder: Path, tuning: dict[str, str]) -> SparkSession:
    builder: Any = SparkSession.builder.appName("chain-verifier")
    is_local = (master or LOCAL_MASTER).startswith("local")
    settings = {
        **_NEEDED,
        **_COMMON,
        **(_LOCAL if is_local else {}),
        **({} if master else tuning),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    log = folder / LOG_FILE
    try:
        environment = _LOCAL_ENVIRONMENT if is_local else {}
        with log.open("ab") as file, _java_ended_where_left(file, environment):
            session: SparkSession = builder.master(master or LOCAL_MASTER).getOrCreate()
    except _START_ERRORS as error:
        reason = spark_reason(error)
        said = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
        raise start_error(said, reason, os.environ) from error
    try:
        _judge(session)
    except SPARK_ERRORS as error:
        raise start_error("", spark_reason(error), os.environ) from error
    _prepare(session, is_local=is_local)
    return session


@contextmanager
def _java_ended_where_left(log: BinaryIO, environment: Mapping[str, str]) -> Iterator[None]:
    """End the Java process of a start that an error or a signal leaves, and wait for its end.

    Its stderr is `log`: Java writes there before any setting of Spark is read, and must not
    break up a progress line of the caller.

    PySpark knows the process only once it has answered. Until then it would not be ended: it finds
    nowhere to write its port to, stays forever, and makes folders that were just removed.
    """
    started: list[Popen[bytes]] = []
    names = vars(java_gateway)
    usual = names["Popen"]

    def noted(*arguments: Any, **options: Any) -> Popen[bytes]:  # noqa: ANN401 - PySpark's own
        own = {"stderr": log, "env": {**options.get("env", os.environ), **environment}}
        process: Popen[bytes] = usual(*arguments, **{**options, **own})
        started.append(process)
        return process

    names["Popen"] = noted
    try:
        yield
    except BaseException:
        if started:
            SparkContext._gateway = SparkContext._jvm = None  # they lead to a process that ends
        for process in started:
            _end(process)
        raise
    finally:
        names["Popen"] = usual


def _end(process: Popen[bytes]) -> None:
    """End a process: by a signal on which Java cleans up, else without that."""
    if process.stdin is not None:  # on which PySpark's Java waits for its own end
        process.stdin.close()
    process.terminate()
    try:
        process.wait(_END_SECONDS)
    except TimeoutExpired:
        process.kill()
        process.wait()


def start_error(log: str, error: str, environ: Mapping[str, str]) -> RefusedError:
    """Return the error of a Spark that did not start, by what it and Java wrote into `log`.

    It names the variables of `environ` that reach Spark, and not their values, which may hold a
    password: Java repeats some of them.
    """
    lines = [line.strip() for line in log.splitlines() if line.strip() and _REPEATED not in line]
    said = next(filter(_IS_ERROR.search, lines), lines[-1] if lines else error)
    if "UnknownHostException" in log + error or "UnresolvedAddress" in log + error:
        expected = "a name with an address (in /etc/hosts), or SPARK_LOCAL_IP set to one"
        name = environ.get("SPARK_LOCAL_HOSTNAME", socket.gethostname())
        return SettingError("host name", name, expected)
    if any(sign in log for sign in _IS_OF_JAVA) and not _JAVA_OPTIONS & environ.keys():
        return SettingError("java", said, EXPECTED)
    named = [name for name in (*_REACHING, *sorted(_JAVA_OPTIONS)) if environ.get(name)]
    expected = "a Spark that starts"
    return SettingError(", ".join(named) or "spark", said, expected)


_IS_ERROR: Final = re.compile(r"\b(?:[Ee]rror|ERROR|[Ii]nvalid|[Uu]nrecognized)\b|Exception\b")
_REPEATED: Final = "Picked up "
_IS_OF_JAVA: Final = (
    "UnsupportedClassVersionError", "java.lang.module.FindException", f"Module {MODULE} not found",
)  # fmt: skip
_JAVA_OPTIONS: Final = frozenset(
    {"JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS"}
)
_REACHING: Final = (
    "SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS", "SPARK_LOCAL_IP",
    "SPARK_LOCAL_HOSTNAME",
)  # fmt: skip
