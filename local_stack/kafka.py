"""A real Apache Kafka on loopback: one node that is broker and controller (KRaft)."""

from __future__ import annotations

import base64
import os
import signal
import socket
import struct
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

import msgspec

from chain_kernel.text import silent
from local_stack.folders import (
    Account,
    ShowLine,
    default_cache_directory,
    make_private_folder,
    make_shared_folder,
    require_reachable,
    service_account,
    write_file,
)
from local_stack.jars import fetch_kafka, find_java
from local_stack.process import LOOPBACK
from local_stack.server import LaunchListener, Server

if TYPE_CHECKING:
    from local_stack.process import ProcessIdentity


_METADATA: Final = 3
_VERSION: Final = 1
"""The first version in which an empty list means "no topics"; brokers 3.7 to 4.1 support it."""
_CORRELATION_ID: Final = 1
_CLIENT: Final = b"orderchain"
_REQUEST: Final = struct.pack(
    f">hhih{len(_CLIENT)}si", _METADATA, _VERSION, _CORRELATION_ID, len(_CLIENT), _CLIENT, 0
)
_ANSWER_BYTES_MAX: Final = 1024 * 1024


def broker_count(port: int, timeout_s: float = 2.0) -> int:
    """Return how many brokers the broker on this port of loopback knows; 0 without an answer.

    A broker's port accepts connections before the broker is registered; a client that connects then
    sees a cluster without brokers. So this requests the cluster's metadata, as the client would.
    """
    try:
        with socket.create_connection((LOOPBACK, port), timeout=timeout_s) as connection:
            connection.settimeout(timeout_s)
            connection.sendall(struct.pack(">i", len(_REQUEST)) + _REQUEST)
            (size,) = struct.unpack(">i", _read(connection, 4))
            if not 8 <= size <= _ANSWER_BYTES_MAX:
                return 0
            correlation_id, brokers = struct.unpack(">ii", _read(connection, 8))
    except OSError:
        return 0
    return max(0, brokers) if correlation_id == _CORRELATION_ID else 0


def _read(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        part = connection.recv(size - len(received))
        if not part:
            raise ConnectionResetError("the broker closed the connection")
        received += part
    return received


_QUICK_START: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Options of a Java that compiles quickly, and not thoroughly."""

_FORMAT_DEADLINE_S: Final = 120.0
_NODE_ID: Final = "1"


class KafkaServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The place of one Kafka, and its configuration."""

    directory: Path
    port: int
    controller_port: int
    heap_mb: int = 512
    is_long_run: bool = True
    """Java compiles thoroughly, which pays after some minutes of load. Without, the broker starts
    and serves its first thousand requests for half the CPU time (measured: 4.3 s, not 7.6)."""
    settings: Mapping[str, str] = {}
    """Any further settings of server.properties; they override ours."""


class KafkaServer(Server):
    """Kafka in one folder, on one port of loopback for clients and one for itself."""

    name: ClassVar[str] = "Kafka"
    # In order (which gives up leadership and closes the log), then by force.
    stop_signals: ClassVar[tuple[tuple[signal.Signals, float], ...]] = (
        (signal.SIGTERM, 30.0),
        (signal.SIGKILL, 10.0),
    )

    def __init__(
        self,
        config: KafkaServerConfig,
        *,
        account: Account | None = None,
        process: ProcessIdentity | None = None,
        on_launch: LaunchListener | None = None,
        progress: ShowLine = silent,
    ) -> None:
        super().__init__(
            config.directory, account or service_account(), process=process, on_launch=on_launch
        )
        self.config = config
        self._progress = progress
        self._jars: Path | None = None
        self._java: Path | None = None

    @property
    def bootstrap(self) -> str:
        """The bootstrap servers, for clients."""
        return f"{LOOPBACK}:{self.config.port}"

    @property
    def jars(self) -> Path:
        """The folder with Kafka's jars; fetched at the first use when it is missing."""
        if self._jars is None:
            cache = default_cache_directory(os.environ)
            self._jars = fetch_kafka(cache, environ=os.environ, progress=self._progress)
            require_reachable(self._jars, self.account)
        return self._jars

    @property
    def java(self) -> Path:
        """The Java it runs on."""
        if self._java is None:
            self._java = find_java(os.environ, self.account)
        return self._java

    def prepare(self) -> None:
        """Write the settings, which may have changed, and format the storage once."""
        make_shared_folder(self.directory, self.account)
        require_reachable(self.directory, self.account)
        # Further settings may hold the keys of listeners.
        write_file(self._settings_path, self._settings(), 0o600, self.account)
        make_private_folder(self.data_directory, self.account)
        # The storage tool writes this file last, so an interrupted run is repeated.
        if not (self.data_directory / "meta.properties").exists():
            command = [*self._program(), *_QUICK_START]
            command += ["kafka.tools.StorageTool", "format", "--ignore-formatted"]
            command += ["-t", _new_cluster_id(), "-c", self._settings_path]
            self._run_logged(
                command,
                deadline_s=_FORMAT_DEADLINE_S,
                purpose="to format",
                failed="could not format its storage",
            )

    def command(self) -> list[str | Path]:
        """The broker, with a heap that leaves room for the rest."""
        tuning = () if self.config.is_long_run else _QUICK_START
        heap = f"-Xmx{self.config.heap_mb}m"
        return [*self._program(), *tuning, heap, "kafka.Kafka", self._settings_path]

    def environment(self) -> dict[str, str]:
        """No CLASSPATH and no Java options of the caller."""
        return {"PATH": os.defpath, "LC_ALL": "C.UTF-8"}

    def is_ready(self) -> bool:
        """True if our process is there and the broker is registered with its controller."""
        return self.is_running() and broker_count(self.config.port) > 0

    def is_answering(self, timeout_s: float = 2.0) -> bool:
        """True if it serves requests now; a frozen broker does not."""
        return broker_count(self.config.port, timeout_s) > 0

    @property
    def _settings_path(self) -> Path:
        return self.directory / "server.properties"

    def _program(self) -> list[str | Path]:
        return [
            self.java,
            *("-XX:+ExitOnOutOfMemoryError", "-Djava.awt.headless=true"),
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSXXX",
            *("-cp", f"{self.jars}/*"),
        ]

    def _settings(self) -> str:
        controller = f"{LOOPBACK}:{self.config.controller_port}"
        ours = {
            "process.roles": "broker,controller",
            "node.id": _NODE_ID,
            "controller.quorum.voters": f"{_NODE_ID}@{controller}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self.data_directory),
            "auto.create.topics.enable": "false",  # nothing but `chain create` makes topics
            "num.partitions": "1",
            # Two files of 10 MiB per partition otherwise: where the disk reads 8 MiB ahead, each
            # first touch fills that with zeros, which took a third of the machine at 3,000.
            "log.index.size.max.bytes": str(256 * 2**10),
            "offsets.topic.num.partitions": "1",  # fifty would slow the first consumer group
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.num.partitions": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            # After kill -9 the broker can register only once its old session has expired.
            "broker.session.timeout.ms": "4000",
            "broker.heartbeat.interval.ms": "1000",
        }
        lines = ["# Written by the local stack at each start."]
        lines += [
            f"{name}={_escape(value)}" for name, value in {**ours, **self.config.settings}.items()
        ]
        return "\n".join(lines) + "\n"


def _new_cluster_id() -> str:
    """A random id of 22 characters, never with a leading dash, which the storage tool takes for an
    option."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii").rstrip("=")
        if not text.startswith("-"):
            return text


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")
