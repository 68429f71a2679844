"""What a command that runs long shows of itself: `--http`, and a line per minute in its log."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from chainctl.output import talk
from orderchain.errors import ConnectError
from orderchain.text import reason_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Iterator

    import uvicorn

    from orderchain.monitoring import Monitor, MonitoredPart

_log = logging.getLogger(__name__)

REPORT_SECONDS: Final = 60.0
"""How often a running command logs how far it is."""

STOP_SECONDS: Final = 2.0
"""How long an answer under way may take at the end: the page is made at once."""

_CONNECTIONS_MAX: Final = 50
"""More than a few scrapers, and too few to take the engine's file descriptors."""

_BACKLOG: Final = 64

_LOOPBACK: Final = "127.0.0.1"


class Address(NamedTuple):
    """Where to listen."""

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
        self._line: Callable[[], str] | None = None

    def add(self, *parts: MonitoredPart) -> None:
        """Show `parts` in the metrics, and wait for them until the command is ready."""
        if self._monitor is not None:
            for part in parts:
                self._monitor.add(part)

    def report(self, line: Callable[[], str]) -> None:
        """Log what `line` returns, once a minute from now on."""
        self._line = line

    async def keep_reporting(self) -> None:
        """Log until cancelled."""
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            if self._line is not None:
                _log.info("%s", self._line())


@asynccontextmanager
async def watched(address: Address | None) -> AsyncIterator[Watch]:
    """Serve the parts that the block adds, at `address` if one is given, and log its progress.

    Raises ConnectError when nothing can listen there.
    """
    monitor, listening = _open(address)
    watch = Watch(monitor)
    tasks = [asyncio.create_task(watch.keep_reporting(), name="chainctl progress")]
    server = None
    if monitor is not None and listening is not None:
        server = quiet_server(monitor, _CONNECTIONS_MAX)
        tasks.append(asyncio.create_task(_serve(server, listening), name="chainctl http"))
    try:
        yield watch
    finally:
        tasks[0].cancel()
        if server is not None:
            server.should_exit = True
        with suppress(asyncio.CancelledError):
            await asyncio.wait(tasks, timeout=2 * STOP_SECONDS)
        for task in tasks:
            task.cancel()


@contextmanager
def watched_beside(address: Address | None) -> Iterator[Watch]:
    """Do as `watched` for a command that holds its thread: a thread of its own serves the parts."""
    monitor, listening = _open(address)
    watch = Watch(monitor)
    if monitor is None or listening is None:
        yield watch
        return
    server = quiet_server(monitor, _CONNECTIONS_MAX)
    thread = threading.Thread(
        target=lambda: asyncio.run(_serve(server, listening)), name="chainctl http", daemon=True
    )
    thread.start()
    try:
        yield watch
    finally:
        server.should_exit = True
        thread.join(2 * STOP_SECONDS)


def _open(address: Address | None) -> tuple[Monitor | None, socket.socket | None]:
    if address is None:
        return None, None
    from orderchain.monitoring import Monitor

    monitor, listening = Monitor(), listen("--http", address)
    bound = Address(address.host, listening.getsockname()[1])
    talk(f"chainctl: metrics and health are served at http://{bound}")
    return monitor, listening


def listen(field: str, address: Address) -> socket.socket:
    """Return a socket that listens at `address`, which `field` has given. Raises ConnectError."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server(address, family=family, backlog=_BACKLOG)
    except (OSError, UnicodeError) as error:
        code = error.errno if isinstance(error, OSError) else None
        reason = os.strerror(code) if code and code > 0 else reason_of(error)  # without the address
        raise ConnectError(field, str(address), f"an address to listen at: {reason}") from error


def quiet_server(
    app: Callable[..., Any], connections_max: int, protocol: type[asyncio.Protocol] | None = None
) -> uvicorn.Server:
    """Return a server of `app` that leaves signals and logs to the command."""
    import uvicorn

    class Quiet(uvicorn.Server):
        """uvicorn without its signal handlers: the command has its own."""

        @contextmanager
        def capture_signals(self) -> Generator[None, None, None]:
            """Leave the signal handlers as they are."""
            yield

    config = uvicorn.Config(
        app,
        lifespan="off",
        http=protocol or "h11",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=connections_max,
        timeout_graceful_shutdown=int(STOP_SECONDS),
    )
    return Quiet(config)


async def _serve(server: uvicorn.Server, listening: socket.socket) -> None:
    """Serve until the server is asked to end. The command goes on without it if it fails."""
    with closing(listening):
        try:
            await server.serve(sockets=[listening])
        except Exception as error:  # noqa: BLE001 - the engine must not end for its metrics
            _log.error("metrics and health are no longer served: %s", reason_of(error))
