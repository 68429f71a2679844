"""Settings of the message service."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from orderchain.config import Config
from orderchain.errors import SettingError
from outbox.sender.check_back import CheckingConfig
from outbox.sender.config import RelayConfig


class ServiceConfig(Config, frozen=True, kw_only=True):
    """The settings of an instance of the message service. Several may share the tables."""

    relay: RelayConfig
    """Database and Kafka; each instance is a relay, too. The database role is `outbox_relay`."""
    host: Annotated[str, Meta(min_length=1, max_length=255)] = "127.0.0.1"
    """Where it listens. TLS is left to the proxy in front of it."""
    port: Annotated[int, Meta(ge=0, le=65_535)] = 8_085
    """0 takes a free one, which is printed on stdout."""
    checking: CheckingConfig = CheckingConfig()
    connections: Annotated[int, Meta(ge=1, le=100)] = 4
    """Database connections that requests share. More wait in the service, not in the database."""
    body_bytes_max: Annotated[int, Meta(ge=1_024, le=64 * 2**20)] = 8 * 2**20
    """Bound on the body of one request."""
    request_seconds: Annotated[float, Meta(gt=0, le=3600)] = 30.0
    """Deadline of one request, its body included."""
    requests_max: Annotated[int, Meta(ge=1, le=10_000)] = 200
    """Requests at work at once; further ones get 503 at once."""
    client_requests_max: Annotated[int, Meta(ge=1, le=10_000)] = 50
    """The same for one client: keep it below `requests_max`, or one client shuts out all others."""
    bodies_bytes_max: Annotated[int, Meta(ge=1_024, le=2**34)] = 64 * 2**20
    """Bytes of bodies in memory at once; a request whose body has no room gets 503. A decoded body
    takes about twice as much in addition."""
    client_bodies_bytes_max: Annotated[int, Meta(ge=1_024, le=2**34)] = 16 * 2**20
    """The same for one client."""
    message_age_seconds_max: Annotated[float, Meta(gt=0, le=366 * 86_400)] = 48 * 3_600.0
    """How old an id may be that a client has drawn. Keep it below the retention: a message stored
    under an older id could be forgotten, and would be stored a second time."""
    message_ahead_seconds_max: Annotated[float, Meta(gt=0, le=86_400)] = 600.0
    """How far ahead of our clock a client's may be."""
    stop_seconds: Annotated[float, Meta(gt=0, le=3600)] = 15.0
    """How long requests under way may take at a stop."""

    def __post_init__(self) -> None:
        """Raise SettingError if an allowed body would never have room."""
        super().__post_init__()
        for field in ("bodies_bytes_max", "client_bodies_bytes_max"):
            if getattr(self, field) < self.body_bytes_max:
                expected = f"at least body_bytes_max, {self.body_bytes_max}"
                raise SettingError(field, getattr(self, field), expected)
