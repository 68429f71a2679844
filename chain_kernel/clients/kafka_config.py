"""The address of Kafka: one value for every client of the engine. Imports no driver."""

from __future__ import annotations

import re
import ssl
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from msgspec import Struct

from chain_kernel.clients.pem import load_authorities, load_own_certificate, read_file
from chain_kernel.config import CheckedNames, is_host
from chain_kernel.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")

_TOKEN_MECHANISM: Final = "OAUTHBEARER"  # noqa: S105 - a name
_SERVER: Final = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\s\[\]:,/@]+):([0-9]{1,5})")
_CLIENT_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")
"""Kafka makes names of metrics from it; other characters would be quoted there, or refused."""

_TEXTS: Final = (
    "bootstrap_servers", "security_protocol", "sasl_mechanism", "sasl_username", "sasl_password",
    "sasl_password_file", "ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_key_password",
    "client_id",
)  # fmt: skip
_SASL_FIELDS: Final = (
    "sasl_mechanism", "sasl_username", "sasl_password", "sasl_password_file", "sasl_token",
)  # fmt: skip
_SSL_FIELDS: Final = ("ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_key_password")
_SECRETS: Final = frozenset({"sasl_password", "ssl_key_password", "sasl_token"})
_HIDDEN: Final = "***"


class _OneSidedGoodbye(ssl.SSLObject):
    """TLS whose closing side says goodbye and does not wait for the answer (RFC 8446, 6.1).

    An event loop would wait 30 s for it. aiokafka closes the connection on which it asked for the
    brokers, and those whose login was refused, and forgets them: they could not be cut off from a
    broker that is slow or frozen, and they would outlive a loop that ends.
    """

    def unwrap(self) -> None:
        """Send the goodbye."""
        # It is written before the answer is looked for.
        with suppress(ssl.SSLWantReadError):
            super().unwrap()


class _LatestFiles(ssl.SSLContext):
    """TLS by its files as they are at each connect; by the last ones while one cannot be used.

    A receiver has one client for months, and the certificate that it began with expires.
    """

    _latest: ssl.SSLContext | None = None

    def follow(self, load: Callable[[ssl.SSLContext], None], files: Iterable[str]) -> None:
        """Be loaded by `load`; another context is, once one of `files` has changed."""
        self._load, self._files = load, [Path(file) for file in files if file]
        self._stamps = self._stamped()
        load(self)

    def wrap_bio(self, *given: Any, **options: Any) -> ssl.SSLObject:  # noqa: ANN401 - of ssl
        """Begin a connection."""
        if (stamps := self._stamped()) != self._stamps:
            with suppress(SettingError):
                self._load(context := ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
                self._latest, self._stamps = context, stamps
        begin = super().wrap_bio if self._latest is None else self._latest.wrap_bio
        return begin(*given, **options)

    def _stamped(self) -> list[tuple[int, int, int]]:
        """Return what differs once a file was written or replaced; nothing while one is away."""
        try:
            found = [file.stat() for file in self._files]
        except OSError:
            return []
        return [(each.st_ino, each.st_size, each.st_mtime_ns) for each in found]


class KafkaConfig(
    Struct, metaclass=CheckedNames, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """The brokers, how to speak with them, and as whom.

    It checks itself when it is constructed and when it is decoded, and raises SettingError, which
    names the field, for what is malformed, for fields that contradict each other, and for files
    that cannot be used. Empty texts are fields that were left out. No text shows a secret.
    """

    bootstrap_servers: str
    """`host:port`, or several with commas between."""
    security_protocol: str = "PLAINTEXT"
    """PLAINTEXT, SSL (TLS), SASL_PLAINTEXT (a login in the clear) or SASL_SSL."""
    sasl_mechanism: str = ""
    """PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER, with a protocol that begins with SASL."""
    sasl_username: str = ""
    sasl_password: str = ""
    sasl_password_file: str = ""
    """A file that holds the password instead, without its last line break. It is read for each
    connection, so that a password may be changed while processes run."""
    sasl_token: Any = None
    """With OAUTHBEARER: an async function without arguments that returns a token as text. It is
    called for each new connection. A token that brokers refuse is seen at the start of a client;
    later aiokafka treats it as accepted, and waits. So never return one that has expired."""
    ssl_cafile: str = ""
    """A PEM file of the authorities whose certificates brokers may show; else the system's."""
    ssl_certfile: str = ""
    """A PEM file with the client's certificate, and those between it and its authority."""
    ssl_keyfile: str = ""
    """A PEM file with the key of that certificate."""
    ssl_key_password: str = ""
    ssl_check_hostname: bool = True
    """True if a broker's certificate has to name the host that was requested. Without this, anybody
    with a certificate of the same authority may pose as the broker."""
    client_id: str = "orderchain"
    """The id of these clients at the brokers; each role adds its name, as in `orderchain-relay`."""

    @classmethod
    def of(cls, kafka: KafkaConfig | str | None) -> Self:
        """Return a config: `kafka` itself, or the plaintext one of a text like `host:9092`."""
        if isinstance(kafka, cls):
            return kafka
        if not isinstance(kafka, str):
            given = None if kafka is None else type(kafka).__name__
            raise SettingError("kafka", given, "host:port, or a KafkaConfig")
        try:
            return cls(bootstrap_servers=kafka)
        except SettingError as error:
            raise SettingError("kafka", kafka, error.expected) from None

    def __post_init__(self) -> None:
        for field in _TEXTS:
            if not isinstance(value := getattr(self, field), str):
                raise SettingError(field, _shown(field, value), "a text")
            if "\0" in value:
                raise SettingError(field, _shown(field, value), "a text without null characters")
        if not isinstance(self.ssl_check_hostname, bool):
            raise SettingError("ssl_check_hostname", self.ssl_check_hostname, "true or false")
        self._check_servers()
        if self.security_protocol not in PROTOCOLS:
            expected = f"one of {', '.join(PROTOCOLS)}"
            raise SettingError("security_protocol", self.security_protocol, expected)
        if not _CLIENT_ID.fullmatch(self.client_id):
            expected = "1 to 200 of the characters A-Z a-z 0-9 . _ -"
            raise SettingError("client_id", self.client_id, expected)
        self._check_sasl()
        self._check_tls()

    @property
    def is_tls(self) -> bool:
        """True if connections are encrypted."""
        return self.security_protocol.endswith("SSL")

    @property
    def is_sasl(self) -> bool:
        """True if clients log in."""
        return self.security_protocol.startswith("SASL")

    @property
    def servers(self) -> list[tuple[str, int]]:
        """The bootstrap servers as hosts and ports; IPv6 addresses without their brackets."""
        found = map(_SERVER.fullmatch, map(str.strip, self.bootstrap_servers.split(",")))
        return [(match[1].strip("[]"), int(match[2])) for match in found if match]

    def client_id_of(self, role: str) -> str:
        """Return the client id of one role, such as `relay`."""
        return f"{self.client_id}-{role}" if role else self.client_id

    def read_password(self) -> str:
        """Return the password, from its file if it has one; empty without a login by password.

        Raises:
            SettingError: the file cannot be read any more, or is empty.
        """
        if not self.sasl_password_file:
            return self.sasl_password
        password = read_file("sasl_password_file", self.sasl_password_file)
        password = password.removesuffix("\n").removesuffix("\r")
        if not password:
            expected = "a file that holds a password"
            raise SettingError("sasl_password_file", self.sasl_password_file, expected)
        return password

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the context of TLS connections; None without TLS.

        Brokers must always show a certificate of a known authority. A connection that is closed
        waits for nothing. Files that are replaced later count from the next connection on.

        Raises:
            SettingError: a file cannot be used any more, or a key does not fit its certificate or
                its password.
        """
        if not self.is_tls:
            return None
        context = _LatestFiles(ssl.PROTOCOL_TLS_CLIENT)
        context.follow(self._load, (self.ssl_cafile, self.ssl_certfile, self.ssl_keyfile))
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        context.sslobject_class = _OneSidedGoodbye
        context.minimum_version = ssl.TLSVersion.TLSv1_2  # not every system asks for it
        context.check_hostname = self.ssl_check_hostname
        if self.ssl_cafile:
            load_authorities(context, ("ssl_cafile", self.ssl_cafile))
        else:
            context.load_default_certs()
        self._load_own_certificate(context)

    def __repr__(self) -> str:
        """Every field that was given, with `***` for secrets."""
        shown = (f"{field}={_shown(field, value)!r}" for field, value, _ in self.__rich_repr__())
        return f"KafkaConfig({', '.join(shown)})"

    def __rich_repr__(self) -> Iterator[tuple[str, object, object]]:  # type: ignore[override]
        """Yield field, masked value and default for `rich`, which would otherwise show secrets."""
        defaults = dict(zip(self.__struct_fields__[1:], self.__struct_defaults__, strict=True))
        for field in self.__struct_fields__:
            value, default = getattr(self, field), defaults.get(field)
            if value != default:
                yield field, _shown(field, value), default

    # -- checks ----------------------------------------------------------------------------------

    def _check_servers(self) -> None:
        expected = "host:port, or several with commas between"
        for server in self.bootstrap_servers.split(","):
            match = _SERVER.fullmatch(server.strip())
            is_good = match and 0 < int(match[2]) < 2**16 and is_host(match[1].strip("[]"))
            if not is_good:
                raise SettingError("bootstrap_servers", self.bootstrap_servers, expected)

    def _check_sasl(self) -> None:
        if not self.is_sasl:
            self._refuse_given(_SASL_FIELDS, "SASL_SSL or SASL_PLAINTEXT log in")
            return
        if self.sasl_mechanism not in MECHANISMS:
            raise SettingError(
                "sasl_mechanism", self.sasl_mechanism, f"one of {', '.join(MECHANISMS)}"
            )
        if self.sasl_mechanism == _TOKEN_MECHANISM:
            self._check_token()
        else:
            self._check_password()

    def _check_token(self) -> None:
        for field in ("sasl_username", "sasl_password", "sasl_password_file"):
            if getattr(self, field):
                raise SettingError(field, _HIDDEN, "none: OAUTHBEARER logs in by sasl_token")
        if not callable(self.sasl_token):
            raise SettingError("sasl_token", _HIDDEN, "an async function that returns a token")

    def _check_password(self) -> None:
        mechanism = self.sasl_mechanism
        if self.sasl_token is not None:
            raise SettingError("sasl_token", _HIDDEN, f"none with {mechanism}")
        if not self.sasl_username:
            raise SettingError("sasl_username", "", f"a user with {mechanism}")
        if bool(self.sasl_password) == bool(self.sasl_password_file):
            given = _HIDDEN if self.sasl_password else ""
            expected = f"a password with {mechanism}: either it or sasl_password_file"
            raise SettingError("sasl_password", given, expected)
        self.read_password()

    def _check_tls(self) -> None:
        if not self.is_tls:
            self._refuse_given(_SSL_FIELDS, "SSL and SASL_SSL speak TLS")
            if not self.ssl_check_hostname:
                raise SettingError("ssl_check_hostname", False, f"true with {self._protocol}")
            return
        if self.ssl_cafile:
            load_authorities(
                ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ("ssl_cafile", self.ssl_cafile)
            )
        if self.ssl_keyfile and not self.ssl_certfile:
            raise SettingError("ssl_certfile", "", "the certificate of ssl_keyfile")
        if self.ssl_certfile and not self.ssl_keyfile:
            raise SettingError("ssl_keyfile", "", "the key of ssl_certfile")
        if self.ssl_key_password and not self.ssl_keyfile:
            raise SettingError("ssl_key_password", _HIDDEN, "none without ssl_keyfile")
        self._load_own_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))

    def _load_own_certificate(self, context: ssl.SSLContext) -> None:
        if self.ssl_certfile:
            load_own_certificate(
                context,
                ("ssl_certfile", self.ssl_certfile),
                ("ssl_keyfile", self.ssl_keyfile),
                ("ssl_key_password", self.ssl_key_password),
            )

    def _refuse_given(self, fields: tuple[str, ...], hint: str) -> None:
        for field in fields:
            if value := getattr(self, field):
                raise SettingError(
                    field, _shown(field, value), f"none with {self._protocol}: {hint}"
                )

    @property
    def _protocol(self) -> str:
        return f"security_protocol {self.security_protocol}"


def _shown(field: str, value: object) -> object:
    return _HIDDEN if field in _SECRETS and value else value
