"""`chainctl console`: one page that shows the chains live."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from chain_kernel.clients.http_server import HttpLimits, HttpServer
from chain_kernel.errors import SettingError
from chain_kernel.files import open_regular
from chainctl.commands.stack import demo_option
from chainctl.event_loop import report_ready, run_async
from chainctl.exits import error_line
from chainctl.monitor_server import STOP_SECONDS, Address, listen
from chainctl.options import Command, uses_settings
from chainctl.output import talk
from chainctl.units import Integer, Span

if TYPE_CHECKING:
    import socket

    from chainctl.console.app import Access
    from chainctl.console.feed import Feed
    from chainctl.settings import Settings

_CONNECTIONS_MAX: Final = 200
"""A page holds one, and needs a few more for a moment."""

_REFRESH_SECONDS_MIN: Final = 0.2
_REFRESH_SECONDS_MAX: Final = 60.0

_TOKEN_CHARACTERS: Final = (16, 512)


@click.command(cls=Command)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="HOST",
    help="Where to listen. Any other host than this machine needs --token-file.",
)
@click.option("--port", type=Integer(0, 65_535), default=8_086, show_default=True,
              help="Port to listen at; 0 takes a free one.")  # fmt: skip
@click.option("--token-file", type=click.Path(path_type=Path), metavar="FILE",
              help="Read the token from it that readers elsewhere, or behind a proxy, need.  "
              "[default: a new one, written to stderr]")  # fmt: skip
@click.option("--refresh", "refresh_seconds", type=Span(), default="1s", metavar="SPAN",
              show_default=True, help="Look at the database again after SPAN (200ms to 60s), while "
              "a page is open.")  # fmt: skip
@click.option("--report", type=click.Path(path_type=Path), metavar="FILE.html",
              help="Where `chainctl verify --report` writes its page: it is linked, and its "
              "verdict shown.")  # fmt: skip
@demo_option
@uses_settings("database", "connect_seconds", "log_format")
def console(
    settings: Settings,
    host: str,
    port: int,
    token_file: Path | None,
    refresh_seconds: float,
    report: Path | None,
) -> None:
    """Serve a page that shows chains, receivers, gaps, outbox and verification live, until Ctrl-C.

    It reads with the auditor's rights, and the outbox with its operator's. On this machine
    everybody may look; elsewhere, and through a proxy, a browser asks for the token as a password.
    There is no TLS: put a proxy with TLS before it, or use a tunnel.
    """
    from chainctl.console.app import Access, is_loopback
    from outbox.service.config import draw_token

    if not _REFRESH_SECONDS_MIN <= refresh_seconds <= _REFRESH_SECONDS_MAX:
        raise SettingError("--refresh", refresh_seconds, "a span of 200ms to 60s")
    if token_file is None and not is_loopback(host):
        raise SettingError("--host", host, "this machine's own, or --token-file beside it")
    token = draw_token() if token_file is None else _token_in(token_file)
    access = Access(token=token, is_open=is_loopback(host))
    said = f"through a proxy, readers need this token: {token}" if token_file is None else ""
    run_async(_serve(settings, Address(host, port), access, refresh_seconds, report, said))


def _token_in(path: Path) -> str:
    """Return the token that a file holds. Raises SettingError, which shows nothing of it."""
    low, high = _TOKEN_CHARACTERS
    try:
        with open_regular(path) as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(high + 2)
    except OSError as error:
        expected = f"a readable file: {error.strerror or type(error).__name__}"
        raise SettingError("--token-file", str(path), expected) from None
    if stat.S_IMODE(mode) & (stat.S_IRWXO | stat.S_IWGRP):
        raise SettingError("--token-file", str(path), "a file that others may not read (chmod 640)")
    token = content.decode("ascii", "replace").strip()
    if not (low <= len(token) <= high and token.isascii() and token.isprintable()) or " " in token:
        expected = f"a file that holds one token of {low} to {high} characters, without blanks"
        raise SettingError("--token-file", str(path), expected)
    return token


async def _serve(
    settings: Settings,
    address: Address,
    access: Access,
    refresh: float,
    report: Path | None,
    said: str,
) -> None:
    from chainctl.console.app import Console
    from chainctl.console.feed import Feed
    from chainctl.console.state_reader import StateReader

    reader = StateReader(settings, report)
    try:
        await reader.read()  # what keeps it from being read is refused now
        listening = listen("--host, --port", address)
        bound = Address(address.host, listening.getsockname()[1])
        feed = Feed(reader, refresh, lambda error: error_line(error, settings.secrets()))
        talk(f"chainctl: the console is at http://{bound}/")
        if said:
            talk(f"chainctl: {said}")
        report_ready(f"serves the console at http://{bound}/")
        limits = HttpLimits(connections_max=_CONNECTIONS_MAX)
        await _run(HttpServer(Console(feed, access, report), limits), feed, listening)
    finally:
        await reader.close()


async def _run(server: HttpServer, feed: Feed, listening: socket.socket) -> None:
    """Serve until cancelled. Raises what ends one of the two."""
    feeding = asyncio.create_task(feed.run(), name="console feed")
    serving = asyncio.create_task(server.serve(listening, STOP_SECONDS), name="console http")
    try:
        done, _ = await asyncio.wait((feeding, serving), return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        feed.close()
        server.stop()
        feeding.cancel()
        await asyncio.wait((feeding, serving), timeout=2 * STOP_SECONDS)
        serving.cancel()
        listening.close()
