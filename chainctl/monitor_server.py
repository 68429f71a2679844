"""Metrics and health of a command that runs long: `--http`."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from chain_kernel.errors import ConnectError
from chain_kernel.text import reason_of
from chainctl.output import talk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from chain_kernel.monitoring import Monitor, MonitoredPart

STOP_SECONDS: Final = 2.0
"""Deadline of the server's end: an answer under way is made at once."""

_BACKLOG: Final = 64

_LOOPBACK: Final = "127.0.0.1"


class Address(NamedTuple):
    """An address to listen at."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class AddressType(click.ParamType):  # type: ignore[type-arg] # generic only in new versions
    """`[HOST:]PORT`; the host is loopback unless it is given."""

    name = "address"

    def convert(
        self, value: str | Address, param: click.Parameter | None, ctx: click.Context | None
    ) -> Address:
        """Return the address that `value` names."""
        if isinstance(value, Address):
            return value
        host, colon, port = value.rpartition(":")
        is_port = port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) < 2**16
        if not is_port or (colon and not host):
            self.fail(f"{value!r} is not [HOST:]PORT, with a port of 0 to 65535", param, ctx)
        return Address(host.removeprefix("[").removesuffix("]") or _LOOPBACK, int(port))


http_option: Final = click.option(
    "--http",
    type=AddressType(),
    metavar="[HOST:]PORT",
    help="Serve /metrics, /livez and /readyz there, without TLS or a login; on 127.0.0.1 unless a "
    "host is given. Port 0 takes a free one.",
)


class Watch:
    """The parts of a command that are shown: each is added once it exists."""

    def __init__(self, monitor: Monitor | None) -> None:
        self._monitor = monitor

    def add(self, *parts: MonitoredPart) -> None:
        """Show `parts` in the metrics, and wait for them until the command is ready."""
        if self._monitor is not None:
            for part in parts:
                self._monitor.add(part)


@asynccontextmanager
async def watched(address: Address | None) -> AsyncIterator[Watch]:
    """Serve the parts that the block adds, at `address` if one is given.

    Raises ConnectError when nothing can listen there.
    """
    with _served(address, asyncio.get_running_loop()) as watch:
        yield watch


@contextmanager
def watched_beside(address: Address | None) -> Iterator[Watch]:
    """Serve the parts that the block adds, for a command that holds its thread."""
    with _served(address, None) as watch:
        yield watch


@contextmanager
def _served(address: Address | None, loop: asyncio.AbstractEventLoop | None) -> Iterator[Watch]:
    if address is None:
        yield Watch(None)
        return
    from chain_kernel.monitoring import Monitor
    from chainctl.monitor_reporting import Reporting

    listening, monitor = listen("--http", address), Monitor()
    bound = Address(address.host, listening.getsockname()[1])
    talk(f"chainctl: metrics and health are served at http://{bound}")
    reporting = Reporting(monitor, loop, listening)
    reporting.start()
    try:
        yield Watch(monitor)
    finally:
        reporting.end()
        listening.close()


def listen(field: str, address: Address) -> socket.socket:
    """Return a socket that listens at `address`, which `field` has given. Raises ConnectError."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server(address, family=family, backlog=_BACKLOG)
    except (OSError, UnicodeError) as error:
        code = error.errno if isinstance(error, OSError) else None
        reason = os.strerror(code) if code and code > 0 else reason_of(error)  # without the address
        raise ConnectError(field, str(address), f"an address to listen at: {reason}") from error
