"""The settings of the message service, and its clients: who may use it, and for what."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
import tomllib
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import Meta, Struct

from chain_kernel.config import Config
from chain_kernel.errors import SettingError
from chain_kernel.files import open_regular
from outbox.destination import Name, is_plain
from outbox.http_call import check_url
from outbox.sender.check_back import CheckingConfig
from outbox.sender.config import RelayConfig

if TYPE_CHECKING:
    from pathlib import Path


CLIENTS_MAX: Final = 10_000
"""Clients of one service: each request is compared with all of them."""

FILE_BYTES_MAX: Final = 4 * 2**20

TOKEN_CHARS_MAX: Final = 256
"""The longest token that is looked at; ours have 43."""

_Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
_Url = Annotated[str, Meta(max_length=2_000)]


class Client(Config, frozen=True, kw_only=True):
    """One client, as the file of clients describes it."""

    name: Name
    """The sender name under which its messages are stored."""
    token_sha256: Annotated[tuple[_Sha256, ...], Meta(min_length=1, max_length=10)]
    """SHA-256 of its token, in hexadecimal; two while a token is being changed."""
    destinations: tuple[Name, ...] = ()
    """The destinations that it may send to; `*` is all."""
    consumers: tuple[Name, ...] = ()
    """The consumers as which it may confirm; `*` is all."""
    metrics: bool = False
    """True if it may read /metrics, which reports on the messages of all clients."""
    check_url: _Url = ""
    """Its check endpoint. Without it, its prepared messages stay so until it decides."""
    callback_url: _Url = ""
    """Its endpoint for the callback service: `/confirmed` and `/resend` are appended to it."""
    call_token: Annotated[str, Meta(max_length=TOKEN_CHARS_MAX)] = ""
    """The bearer token that we show when we call it."""

    def __post_init__(self) -> None:
        """Raise SettingError for a name or a URL that can't be used."""
        super().__post_init__()
        if not is_plain(self.name):
            raise SettingError("client name", self.name, "printable ASCII characters")
        for field in ("check_url", "callback_url"):
            if url := getattr(self, field):
                check_url(f"{field} of client {self.name}", url)
        if not is_plain(self.call_token):
            expected = "printable ASCII characters"
            raise SettingError(f"call_token of client {self.name}", "a secret", expected)

    def __repr__(self) -> str:
        """Show the name alone: the rest holds secrets."""
        return f"Client(name={self.name!r})"

    def may_send_to(self, destination: str) -> bool:
        """Return whether it may send there."""
        return destination in self.destinations or "*" in self.destinations

    def may_confirm_as(self, consumer: str) -> bool:
        """Return whether it may confirm as that consumer."""
        return consumer in self.consumers or "*" in self.consumers


class _ClientsFile(Struct, forbid_unknown_fields=True):
    client: Annotated[list[Client], Meta(min_length=1, max_length=CLIENTS_MAX)]


class Clients:
    """All clients of a service."""

    def __init__(self, clients: list[Client]) -> None:
        self._by_name = {client.name: client for client in clients}
        if len(self._by_name) != len(clients):
            raise SettingError("client", "a name that is there twice", "each name once")
        self._hashes = [
            (bytes.fromhex(digest), client) for client in clients for digest in client.token_sha256
        ]
        if len({digest for digest, _ in self._hashes}) != len(self._hashes):
            raise SettingError("token_sha256", "one that is there twice", "each token once")

    def by_name(self, name: str) -> Client | None:
        """Return the client of that name."""
        return self._by_name.get(name)

    def by_token(self, token: str) -> Client | None:
        """Return the client of a token, in a time that reveals nothing about the others.

        Tokens are drawn at random, so it is enough to keep one plain hash of each.
        """
        if not 0 < len(token) <= TOKEN_CHARS_MAX:
            return None
        given = hash_token(token)
        found: Client | None = None
        for known, client in self._hashes:
            if hmac.compare_digest(known, given):
                found = client  # and go on: the place in the list must not show
        return found

    def __iter__(self) -> object:
        return iter(self._by_name.values())


def _check_mode(path: Path, mode: int) -> None:
    """Refuse a file of secrets that others may read, or that they or its group may write."""
    open_to = stat.S_IRWXO | stat.S_IWGRP
    if mode & open_to:
        expected = f"a file that others may not read (chmod {stat.S_IMODE(mode & ~open_to):o})"
        raise SettingError("clients", f"{path} (mode {stat.S_IMODE(mode):o})", expected)


def hash_token(token: str) -> bytes:
    """Return what is stored of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def draw_token() -> str:
    """Return a new token of 256 random bits."""
    return secrets.token_urlsafe(32)


def read_clients(path: Path) -> Clients:
    """Return the clients that a TOML file describes.

    Raises:
        SettingError: the file cannot be read, or is not as documented; no secret is shown.
    """
    try:
        with open_regular(path) as file:
            _check_mode(path, os.fstat(file.fileno()).st_mode)
            content = file.read(FILE_BYTES_MAX + 1)
        if len(content) > FILE_BYTES_MAX:
            raise SettingError("clients", str(path), f"at most {FILE_BYTES_MAX} bytes of TOML")
        decoded = msgspec.convert(tomllib.loads(content.decode()), _ClientsFile)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise SettingError("clients", str(path), f"a readable file: {reason}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError):
        raise SettingError("clients", str(path), "a TOML file with [[client]] tables") from None
    except msgspec.ValidationError as error:
        raise SettingError("clients", str(path), f"clients as documented: {error}") from None
    return Clients(decoded.client)


class ServiceConfig(Config, frozen=True, kw_only=True):
    """The settings of an instance of the message service. Several may share the tables."""

    relay: RelayConfig
    """Database and Kafka; each instance is a relay, too. The database role is `outbox_relay`."""
    host: Annotated[str, Meta(min_length=1, max_length=255)] = "127.0.0.1"
    """The address that it listens at. TLS is left to the proxy in front of it."""
    port: Annotated[int, Meta(ge=0, le=65_535)] = 8_085
    """0 takes a free one, which is printed on stdout."""
    checking: CheckingConfig = CheckingConfig()
    connections: Annotated[int, Meta(ge=1, le=100)] = 4
    """Database connections that requests share, and as many for lists. More requests wait in the
    service, not in the database."""
    body_bytes_max: Annotated[int, Meta(ge=1_024, le=64 * 2**20)] = 8 * 2**20
    """Bound on the body of one request."""
    request_seconds: Annotated[float, Meta(gt=0, le=3600)] = 30.0
    """Deadline of one request, its body included."""
    bodies_bytes_max: Annotated[int, Meta(ge=1_024, le=2**34)] = 64 * 2**20
    """Bytes of bodies in memory at once, of all clients; a request whose body has no room gets 503.
    A decoded body takes about twice as much in addition. Shares of clients are left to the proxy.
    """
    message_age_seconds_max: Annotated[float, Meta(gt=0, le=366 * 86_400)] = 48 * 3_600.0
    """Greatest age of an id that a client has drawn. Keep it below the retention: a message stored
    under an older id could be forgotten, and would be stored a second time."""
    message_ahead_seconds_max: Annotated[float, Meta(gt=0, le=86_400)] = 600.0
    """Greatest lead of a client's clock over ours."""
    stop_seconds: Annotated[float, Meta(gt=0, le=3600)] = 15.0
    """Deadline of requests under way at a stop."""

    def __post_init__(self) -> None:
        """Raise SettingError if an allowed body would never have room."""
        super().__post_init__()
        if self.bodies_bytes_max < self.body_bytes_max:
            expected = f"at least body_bytes_max, {self.body_bytes_max}"
            raise SettingError("bodies_bytes_max", self.bodies_bytes_max, expected)
