"""The address of a PostgreSQL: hosts, login and TLS. Imports no driver.

Texts are those of libpq: a URL (`postgresql://user@host:5432/orders?sslmode=verify-full`) or
keywords (`host=db1,db2 dbname=orders`). What they leave out is taken from a service file, from the
environment (PGSSLMODE and the like) and from `~/.postgresql`, in this order.
"""

from __future__ import annotations

import configparser
import getpass
import ipaddress
import logging
import os
import re
import ssl
import stat
from contextlib import suppress
from copy import copy
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import quote, unquote

from msgspec import Struct
from msgspec.structs import force_setattr

from chain_kernel.clients.pem import load_authorities, load_own_certificate, read_file
from chain_kernel.config import CheckedNames, is_host
from chain_kernel.errors import SettingError
from chain_kernel.files import home_folder, open_regular
from chain_kernel.masks import mask_dsn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from io import BufferedReader


_HIDDEN: Final = "***"
_EXPECTED: Final = "a URL like postgresql://user@host:5432/database, or keywords like host=... "
_ENCODED: Final = f"{_EXPECTED}(in a URL, encode / ? # @ : % of a password as %2F and the like)"

_URL: Final = re.compile(
    r"postgres(?:ql)?://(?:(?P<login>[^@/?#]*)@)?(?P<hosts>[^@/?#]*)"
    r"(?:/(?P<dbname>[^@?#]*))?(?:\?(?P<options>[^@#]*))?"
)
_DRIVER: Final = re.compile(r"postgres(?:ql)?(\+\w+)://")
"""Names of drivers in a URL of SQLAlchemy and others; libpq knows no such thing."""
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\[\]:]*)(?::([0-9]*))?")
_KEYWORD: Final = re.compile(
    r"\s*(?P<name>\w+)\s*=\s*(?:'(?P<quoted>(?:[^'\\]|\\.)*)'|(?P<plain>(?:[^\s'\\]|\\.)*))(?:\s+|$)",
    re.DOTALL,
)

_ENVIRONMENT: Final = {
    "PGHOST": "host",
    "PGPORT": "port",
    "PGDATABASE": "dbname",
    "PGUSER": "user",
    "PGPASSWORD": "password",
    "PGPASSFILE": "passfile",
    "PGSSLMODE": "sslmode",
    "PGSSLROOTCERT": "sslrootcert",
    "PGSSLCRL": "sslcrl",
    "PGSSLCERT": "sslcert",
    "PGSSLKEY": "sslkey",
    "PGSSLNEGOTIATION": "sslnegotiation",
    "PGSSLMINPROTOCOLVERSION": "ssl_min_protocol_version",
    "PGTARGETSESSIONATTRS": "target_session_attrs",
    "PGCONNECT_TIMEOUT": "connect_timeout",
    "PGOPTIONS": "options",
    "PGCHANNELBINDING": "channel_binding",
    "PGREQUIREAUTH": "require_auth",
    "PGGSSENCMODE": "gssencmode",
}

_WITHOUT_EFFECT: Final = {
    "channel_binding": ("disable", "prefer"),
    "gssencmode": ("disable", "prefer"),
    "sslsni": ("1",),
    "client_encoding": ("auto", "utf8", "UTF8", "utf-8", "UTF-8"),
}
"""Options that the drivers lack, with the values that require nothing of them."""

_ALIASES: Final = {"database": "dbname", "username": "user"}


def parse(text: str) -> dict[str, str]:
    """Return the options of a text by libpq's names; empty ones are left out.

    Raises SettingError, which shows no piece of the text that might hold a password.
    """
    if driver := _DRIVER.match(text):
        raise SettingError("database", mask_dsn(text), f"postgresql:// (leave out {driver[1]})")
    if text.startswith(("postgresql://", "postgres://")):
        found = _parse_url(text)
    elif "=" in text and "://" not in text:
        found = _parse_keywords(text)
    else:
        raise SettingError("database", mask_dsn(text) if text else "", _EXPECTED.rstrip())
    return {_ALIASES.get(name, name): value for name, value in found.items() if value}


def completed(given: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Add what `given` leaves out from its service, then from the environment.

    Raises SettingError for a service that does not exist, and for an option that requires what the
    drivers cannot do.
    """
    whole = dict(given)
    named = {
        name: environ[variable] for variable, name in _ENVIRONMENT.items() if variable in environ
    }
    service = whole.pop("service", "") or environ.get("PGSERVICE", "")
    file = whole.pop("servicefile", "") or environ.get("PGSERVICEFILE", "")
    if service:
        home = home_folder(environ)
        if not file and home is None:
            expected = "servicefile or PGSERVICEFILE with it: this account has no home folder"
            raise SettingError("service", service, expected)
        whole = _service(service, Path(file or f"{home}/.pg_service.conf")) | whole
    whole = {name: value for name, value in named.items() if value} | whole
    for name, harmless in _WITHOUT_EFFECT.items():
        value = whole.pop(name, "")
        if value and value not in harmless:
            raise SettingError(name, value, f"{' or '.join(harmless)}: the drivers know no other")
    if whole.pop("require_auth", ""):
        raise SettingError("require_auth", "given", "none: the drivers do not know it")
    return whole


def _parse_url(text: str) -> dict[str, str]:
    match = _URL.fullmatch(text)
    if match is None:
        raise SettingError("database", mask_dsn(text), _ENCODED)
    user, _, password = (match["login"] or "").partition(":")
    if not (places := _parse_hosts(match["hosts"])):
        raise SettingError("database", mask_dsn(text), _ENCODED)
    hosts, ports = places
    found = {"user": user, "password": password, "host": hosts, "port": ports}
    found["dbname"] = match["dbname"] or ""
    for option in (match["options"] or "").split("&"):
        name, equals, value = option.partition("=")
        if option and not equals:
            raise SettingError("database", _HIDDEN, _ENCODED)
        found |= {unquote(name): value} if value else {}
    return {name: unquote(value) for name, value in found.items() if value}


def _parse_hosts(text: str) -> tuple[str, str] | None:
    """Return hosts and ports of a URL, each with commas between; no ports where none is given.

    None for what are no hosts.
    """
    matches = [_HOST.fullmatch(each) for each in text.split(",")]
    if not all(matches):
        return None
    hosts = ",".join(match[1] for match in matches if match)
    ports = [match[2] or "" for match in matches if match]
    return hosts, ",".join(ports) if any(ports) else ""


def _parse_keywords(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    at = 0
    text = text.strip()
    while at < len(text):
        match = _KEYWORD.match(text, at)
        if match is None:
            raise SettingError("database", _HIDDEN, f"{_EXPECTED}(values with spaces in '...')")
        value = match["plain"] if match["quoted"] is None else match["quoted"]
        found[match["name"]] = re.sub(r"\\(.)", r"\1", value, flags=re.DOTALL)
        at = match.end()
    return found


def _service(name: str, path: Path) -> dict[str, str]:
    """Return the options of a service. Raises SettingError."""
    services = configparser.ConfigParser(interpolation=None)
    try:
        services.read_string(read_file("service", str(path)))
        return {_ALIASES.get(key, key): value for key, value in services[name].items() if value}
    except (SettingError, configparser.Error, KeyError):
        raise SettingError("service", name, f"a service in {path}") from None


_log = logging.getLogger(__name__)

SSL_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
"""From the weakest to the strongest. Only the last one keeps others from posing as the server."""

TARGETS: Final = ("any", "read-write", "read-only", "primary", "standby", "prefer-standby")

SYSTEM_AUTHORITIES: Final = "system"
"""The value of `sslrootcert` that stands for the authorities that the system trusts."""

_TLS_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CHOICES: Final = {
    "sslmode": SSL_MODES,
    "target_session_attrs": TARGETS,
    "sslnegotiation": ("postgres", "direct"),
    "ssl_min_protocol_version": tuple(_TLS_VERSIONS),
}
_DEFAULT_PORT: Final = 5432
_DEFAULT_HOSTS: Final = ("/run/postgresql", "/var/run/postgresql", "/tmp", "localhost")  # noqa: S108
"""Default places of a server: the sockets of builds of libpq, then loopback."""
_CONNECT_SECONDS_MAX: Final = 3600

_SECRETS: Final = frozenset({"password", "sslpassword"})
_PASSFILE_LINE: Final = re.compile(r"((?:[^:\\]|\\.)*):" * 4 + "(.*)")
_ALPN: Final = ["postgresql"]
"""The protocol that a server requires when TLS starts with the first byte."""


PINNED: Final = {
    # A role may set each of these for itself (ALTER ROLE), and what is set so holds for all its
    # later sessions. The options of a connection take precedence over it.
    "search_path": "public",
    "default_transaction_isolation": "read committed",
    # A backslash in a text is a backslash.
    "standard_conforming_strings": "on",
    # Our deadlines count.
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_session_timeout": "0",
    # A backend that waits for a lock does not notice otherwise that its client has given up, and
    # each try leaves one more, until the server has no connection left (PostgreSQL 14).
    "client_connection_check_interval": "2s",
    # At the sixth call PostgreSQL would try a plan for any chain: it takes seconds, and the locks
    # of all partitions of all chains.
    "plan_cache_mode": "force_custom_plan",
}
"""Settings that every session of ours depends on. An option of the same name in the URL takes
precedence."""


class DatabaseConfig(
    Struct, metaclass=CheckedNames, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """The address of a database, as whom to log in, and what the server has to prove.

    The fields have libpq's names and meanings, and empty ones are left out. It checks itself when
    it is constructed and when it is decoded, and raises SettingError, which names the field. A
    constructed config is used as it is; only `of` reads the environment. No text shows a secret.

    **TLS.** `prefer`, the default of libpq and asyncpg, sends the password in the clear to a server
    that refuses TLS and requests it in the clear, and to a machine that poses as such a server.
    Here `prefer` is the default only for this machine. For other hosts it is `require`: nothing is
    sent in the clear, but a machine with any certificate may still pose as the server. Only
    `verify-full` prevents that, and `exposure` warns about every other mode. As in libpq, `require`
    with `sslrootcert` is `verify-ca`.
    """

    host: str = ""
    """Names, addresses, or folders of Unix sockets, with commas between."""
    port: int | str = ""
    """One for all hosts, or one for each with commas between. Default 5432."""
    dbname: str = ""
    """Default: named like the user."""
    user: str = ""
    """Default: the user of the process."""
    password: str = ""
    passfile: str = ""
    """A file of lines `host:port:database:user:password`, with `*` for any, that only its owner can
    read. It is read for each connection."""
    sslmode: str = ""
    """disable, allow, prefer, require, verify-ca or verify-full; default as above."""
    sslrootcert: str = ""
    """A PEM file of the authorities whose certificates servers may show; `system`: the system's."""
    sslcrl: str = ""
    sslcert: str = ""
    """A PEM file with the client's certificate."""
    sslkey: str = ""
    """A PEM file with its key."""
    sslpassword: str = ""
    sslnegotiation: str = ""
    """postgres (asks for TLS first), or direct (PostgreSQL 17 and newer)."""
    ssl_min_protocol_version: str = ""
    """TLSv1.2, which is the default, or TLSv1.3."""
    target_session_attrs: str = ""
    """The kind of server that is accepted: any, primary, standby, prefer-standby, read-write,
    read-only."""
    connect_timeout: int | str = ""
    """Seconds for each host, where the engine's own deadline is longer."""
    application_name: str = ""
    """Replaces the name that the engine gives each of its connections."""
    options: str = ""
    """Settings of the sessions, as `-c name=value`."""

    @classmethod
    def of(
        cls, database: DatabaseConfig | str | None, environ: Mapping[str, str] | None = None
    ) -> Self:
        """Return a config: `database` itself, or that of a text, completed as libpq does.

        Args:
            database: a URL or DSN of libpq, or a config.
            environ: replaces that of the process.

        Raises:
            SettingError: it cannot be read; no piece of the text is shown that might hold a
                password.
        """
        if isinstance(database, cls):
            return database
        if not isinstance(database, str):
            kind = None if database is None else type(database).__name__
            raise SettingError("database", kind, "a URL, or a DatabaseConfig")
        environ = os.environ if environ is None else environ
        given = completed(parse(database), environ)
        fields = cls.__struct_fields__
        unknown = sorted(set(given) - set(fields))
        if unknown:
            expected = f"one of {', '.join(sorted(fields))}"
            raise SettingError("database option", unknown[0], expected)
        return cls(**_with_home_files(given, home_folder(environ)))

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            value = getattr(self, field)
            is_number = field in ("port", "connect_timeout") and isinstance(value, int)
            if not isinstance(value, str) and (not is_number or isinstance(value, bool)):
                raise SettingError(field, _shown(field, value), "a text")
            if "\0" in str(value):
                raise SettingError(field, _shown(field, value), "a text without null characters")
        for field, choices in _CHOICES.items():
            if (value := getattr(self, field)) and value not in choices:
                raise SettingError(field, value, f"one of {', '.join(choices)}")
        self._check_numbers()
        if not self.user:
            try:
                getpass.getuser()
            except (KeyError, OSError):  # as in a container that runs under a number
                raise SettingError("user", "", "a login: this account has no name") from None
        for host, _ in self.addresses:
            if not host.startswith("/") and not is_host(host):
                raise SettingError("host", host, "names of 1 to 63 characters between dots")
        self._check_tls()
        if self.passfile:
            _read_passfile(self.passfile)

    @property
    def wants_primary(self) -> bool:
        """True if only a server that says that it is the primary is accepted."""
        return self.target_session_attrs in ("primary", "read-write")

    @property
    def wants_newest(self) -> bool:
        """True if the newest primary of those that answer is taken.

        One host that may be any leads to another server where no primary answers.
        """
        is_any = self.target_session_attrs in ("", "any")
        return self.wants_primary or (is_any and "," not in self.host)

    @property
    def may_move(self) -> bool:
        """True if another server may be meant tomorrow: of several hosts, or of a name, which leads
        to several addresses, or to another one then.
        """
        are_fixed = all(is_local(host) or is_address(host) for host, _ in self.addresses)
        return "," in self.host or not are_fixed

    def for_writing(self) -> Self:
        """Return it for a login that writes: of one host, that means the primary there.

        Its files are not read again: one may be away for a moment, and later that is an outage.

        Raises:
            SettingError: there are several hosts of which any may be chosen, or a standby is
                wanted: one that answers may lag, and what is read there is not what was committed.
        """
        if self.wants_primary:
            return self
        several = "," in self.host
        if not several and self.target_session_attrs in ("", "any"):
            meant = copy(self)  # unlike `replace`, checks nothing
            force_setattr(meant, "target_session_attrs", "primary")
            return meant
        raise SettingError(
            "target_session_attrs",
            self.target_session_attrs,
            f"primary or read-write, for a login that writes to {'one of ' * several}{self.host}",
        )

    def for_elsewhere(self) -> Self:
        """Return it for another machine: with its login and password, if all hosts have the same.

        Its other files must be there at the same paths.

        Raises:
            SettingError: the passfile cannot be used any more.
        """
        passwords = {self.read_password(*address) for address in self.addresses}
        same = {"password": passwords.pop(), "passfile": ""} if len(passwords) == 1 else {}
        moved = copy(self)  # unlike `replace`, checks nothing
        for name, value in {"user": self.login, **same}.items():
            force_setattr(moved, name, value)
        return moved

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Hosts and ports, in the order in which they are tried; IPv6 without brackets."""
        hosts = self.host.split(",") if self.host else list(_DEFAULT_HOSTS)
        ports = str(self.port).split(",") if self.port != "" else [str(_DEFAULT_PORT)]
        if len(ports) == 1:
            ports *= len(hosts)
        return [
            (host.strip().strip("[]") or "localhost", int(port or _DEFAULT_PORT))
            for host, port in zip(hosts, ports, strict=True)
        ]

    @property
    def login(self) -> str:
        """The user."""
        return self.user or getpass.getuser()

    @property
    def database(self) -> str:
        """The name of the database."""
        return self.dbname or self.login

    @property
    def tls_mode(self) -> str:
        """The TLS mode that the server must satisfy, one of `SSL_MODES`; not used with sockets."""
        mode = self.sslmode
        if not mode:
            mode = "prefer" if all(is_local(host) for host, _ in self.addresses) else "require"
        if self.sslrootcert == SYSTEM_AUTHORITIES:
            return "verify-full"
        return "verify-ca" if mode == "require" and self.sslrootcert else mode

    @property
    def is_tls_certain(self) -> bool:
        """True if nothing is ever sent in the clear to a host."""
        return SSL_MODES.index(self.tls_mode) >= SSL_MODES.index("require")

    @property
    def shown(self) -> str:
        """A URL for errors and logs: without secrets."""
        named = self.addresses if self.host else self.addresses[-1:]
        hosts = ",".join(server_name(host, port) for host, port in named)
        secret = f":{_HIDDEN}" if self.password else ""
        mode = f"?sslmode={self.sslmode}" if self.sslmode else ""
        user, database = quote(self.login, safe=""), quote(self.database, safe="")
        return f"postgresql://{user}{secret}@{hosts}/{database}{mode}"

    def exposure(self) -> str | None:
        """Return a warning where another machine may pose as the server, else None."""
        exposed = [server_name(host, port) for host, port in self.addresses if not is_local(host)]
        if not exposed or self.tls_mode == "verify-full":
            return None
        return (
            f"database {', '.join(exposed)}: with sslmode {self.tls_mode} another machine may pose "
            "as the server, and see and change everything: use sslmode=verify-full with sslrootcert"
        )

    def read_password(self, host: str, port: int) -> str:
        """Return the password for one of the addresses; empty where there is none.

        Raises SettingError where the passfile cannot be used any more.
        """
        if self.password or not self.passfile:
            return self.password
        # Sockets count as localhost, as in libpq.
        wanted = (
            "localhost" if host.startswith("/") else host,
            str(port),
            self.database,
            self.login,
        )
        for line in _read_passfile(self.passfile):
            *patterns, password = line
            if all(one in ("*", value) for one, value in zip(patterns, wanted, strict=True)):
                return password
        return ""

    def tls_context(self) -> ssl.SSLContext:
        """Return the context of TLS connections, by `tls_mode`. Raises SettingError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = self.tls_mode == "verify-full"
        if not self.tls_mode.startswith("verify"):
            context.verify_mode = ssl.CERT_NONE
        elif self.sslrootcert == SYSTEM_AUTHORITIES:
            context.load_default_certs()
        else:
            load_authorities(context, ("sslrootcert", self.sslrootcert))
        if self.sslcrl:
            self._load_revocations(context)
        self._load_own_certificate(context)
        # libpq's own default; not every system asks for it.
        least = self.ssl_min_protocol_version or "TLSv1.2"
        context.minimum_version = _TLS_VERSIONS[least]
        context.set_alpn_protocols(_ALPN)
        return context

    def __repr__(self) -> str:
        """Every field that was given, with `***` for secrets."""
        shown = (f"{field}={value!r}" for field, value, _ in self.__rich_repr__())
        return f"DatabaseConfig({', '.join(shown)})"

    def __rich_repr__(self) -> Iterator[tuple[str, object, object]]:  # type: ignore[override]
        """Yield field, masked value and default for `rich`, which would otherwise show secrets."""
        for field in self.__struct_fields__:
            if (value := getattr(self, field)) != "":
                yield field, _shown(field, value), ""

    # -- checks ----------------------------------------------------------------------------------

    def _check_numbers(self) -> None:
        hosts, ports = self.host.split(","), str(self.port).split(",")
        for port in ports:
            # A text in the place of a port may be a piece of a password.
            if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 2**16):
                raise SettingError(
                    "port", _HIDDEN, "a number from 1 to 65535, or one for each host"
                )
        if len(ports) not in (1, len(hosts)):
            raise SettingError("port", self.port, f"one, or one for each of the {len(hosts)} hosts")
        seconds = str(self.connect_timeout)
        if seconds and not (seconds.isascii() and seconds.isdigit()):
            raise SettingError("connect_timeout", seconds, "seconds, as a whole number")
        if seconds and int(seconds) > _CONNECT_SECONDS_MAX:
            raise SettingError("connect_timeout", seconds, f"at most {_CONNECT_SECONDS_MAX}")

    def _check_tls(self) -> None:
        if self.sslrootcert == SYSTEM_AUTHORITIES and self.sslmode not in ("", "verify-full"):
            raise SettingError("sslmode", self.sslmode, "verify-full with sslrootcert=system")
        if self.tls_mode.startswith("verify") and not self.sslrootcert:
            expected = f"a PEM file of authorities, or system, with sslmode {self.tls_mode}"
            raise SettingError("sslrootcert", "", expected)
        if self.sslnegotiation == "direct" and not self.is_tls_certain:
            raise SettingError(
                "sslmode", self.tls_mode, "require or more with sslnegotiation=direct"
            )
        if self.sslkey and not self.sslcert:
            raise SettingError("sslcert", "", "the certificate of sslkey")
        if self.sslcert and not self.sslkey:
            raise SettingError("sslkey", "", "the key of sslcert")
        if self.sslpassword and not self.sslkey:
            raise SettingError("sslpassword", _HIDDEN, "none without sslkey")
        self._check_tls_files()

    def _check_tls_files(self) -> None:
        if self.sslrootcert in ("", SYSTEM_AUTHORITIES) and not (self.sslcrl or self.sslcert):
            return  # a context that loads nothing would be half of the time of a config
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self.sslrootcert not in ("", SYSTEM_AUTHORITIES):
            load_authorities(context, ("sslrootcert", self.sslrootcert))
        if self.sslcrl:
            self._load_revocations(context)
        self._load_own_certificate(context)

    def _load_revocations(self, context: ssl.SSLContext) -> None:
        read_file("sslcrl", self.sslcrl)
        try:
            context.load_verify_locations(self.sslcrl)
        except (ssl.SSLError, OSError):
            expected = "a PEM file of revocation lists"
            raise SettingError("sslcrl", self.sslcrl, expected) from None
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN

    def _load_own_certificate(self, context: ssl.SSLContext) -> None:
        if self.sslcert:
            load_own_certificate(
                context,
                ("sslcert", self.sslcert),
                ("sslkey", self.sslkey),
                ("sslpassword", self.sslpassword),
            )


def warn_of_exposure(config: DatabaseConfig) -> None:
    """Log a warning where another machine may pose as the server: once per process and hosts."""
    if warning := config.exposure():
        _warn_once(warning)


@lru_cache(maxsize=64)
def _warn_once(warning: str) -> None:
    _log.warning("%s", warning)


def is_local(host: str) -> bool:
    """Return whether `host` names this machine itself: a socket's folder, or loopback."""
    if host.startswith("/") or host in ("localhost", "ip6-localhost"):
        return True
    return is_address(host) and ipaddress.ip_address(host).is_loopback


def is_address(host: str) -> bool:
    """Return whether `host` is an address, which needs no look-up."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def server_name(host: str, port: int) -> str:
    """Return `host:port` as texts show it; a socket's folder as itself."""
    if host.startswith("/"):
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _with_home_files(given: dict[str, str], home: Path | None) -> dict[str, str]:
    """Add the files of `~/.postgresql`, and `~/.pgpass`, where they exist and are not named."""
    if home is None:
        return given
    folder, mode = home / ".postgresql", given.get("sslmode", "require")
    added: dict[str, Path] = {}
    certificate, key = folder / "postgresql.crt", folder / "postgresql.key"
    is_named = "sslcert" in given or "sslkey" in given
    if mode != "disable" and not is_named and certificate.is_file() and key.is_file():
        added |= {"sslcert": certificate, "sslkey": key}
    if mode not in ("disable", "allow", "prefer"):
        authorities = {"sslrootcert": folder / "root.crt", "sslcrl": folder / "root.crl"}
        added |= {name: path for name, path in authorities.items() if path.is_file()}
    passfile = home / ".pgpass"
    if "password" not in given:
        # A file that others can read is ignored, as by libpq. One that was named is refused.
        with suppress(OSError, SettingError):
            _open_private(passfile).close()
            added["passfile"] = passfile
    return {name: str(path) for name, path in added.items()} | given


def _open_private(path: str | Path) -> BufferedReader:
    """Open a passfile that its owner alone can read. Raises OSError; SettingError for another.

    The open file is looked at: its name may lead to none, or to another, a moment later.
    """
    file = open_regular(path)
    if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & (stat.S_IRWXG | stat.S_IRWXO):
        file.close()
        expected = "a file that its owner alone can read (chmod 600)"
        raise SettingError("passfile", str(path), expected)
    return file


def _read_passfile(path: str) -> list[list[str]]:
    """Return the five fields of each line of a passfile. Raises SettingError."""
    text = read_file("passfile", path, _open_private)
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    found = [_PASSFILE_LINE.fullmatch(line) for line in lines]
    escape = re.compile(r"\\(.)")
    return [[escape.sub(r"\1", field) for field in match.groups()] for match in found if match]


def _shown(field: str, value: object) -> object:
    return _HIDDEN if field in _SECRETS and value else value
