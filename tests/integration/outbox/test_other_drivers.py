"""Messages from programs that do not use asyncpg: the lines of the guide, as they are there."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import django
import psycopg
import pytest
import sqlalchemy
from django.conf import settings
from django.db import connection as django_connection
from django.db import connections, transaction

from outbox import Destination, save_destinations
from outbox.roles import OUTBOX_OPERATOR, OUTBOX_WRITER
from tests.pages import blocks_of

from .conftest import Sender

GUIDE = Path(__file__).parents[3] / "docs" / "choosing-a-delivery-mode.md"


@contextmanager
def psycopg_names(dsn: str) -> Iterator[dict[str, Any]]:
    yield {"psycopg": psycopg, "dsn": dsn}


@contextmanager
def sqlalchemy_names(dsn: str) -> Iterator[dict[str, Any]]:
    engine = sqlalchemy.create_engine(dsn.replace("postgresql:", "postgresql+psycopg:", 1))
    names = ("text", "select", "func")
    try:
        yield {"engine": engine, **{name: getattr(sqlalchemy, name) for name in names}}
    finally:
        engine.dispose()


@contextmanager
def django_names(dsn: str) -> Iterator[dict[str, Any]]:
    parts = urlsplit(dsn)
    own = {
        "ENGINE": "django.db.backends.postgresql", "NAME": parts.path[1:], "USER": parts.username,
        "PASSWORD": parts.password, "HOST": parts.hostname, "PORT": parts.port,
    }  # fmt: skip
    if not settings.configured:
        settings.configure(DATABASES={"default": own})
        django.setup()
    # A test may not be the first of its process: the settings are those of the first.
    connections.settings = connections.configure_settings({"default": own})
    try:
        yield {"connection": django_connection, "transaction": transaction}
    finally:
        connections.close_all()
        del connections["default"]


DRIVERS: dict[str, Callable[[str], Any]] = {
    "psycopg": psycopg_names,
    "sqlalchemy": sqlalchemy_names,
    "django": django_names,
}


def lines_of(driver: str) -> str:
    (block,) = [each for each in blocks_of(GUIDE) if each.title == driver]
    return block.text


@pytest.mark.parametrize("driver", DRIVERS)
async def test_lines_of_the_guide_store_change_and_message_or_neither(
    sender: Sender, driver: str
) -> None:
    operator = await sender.connect(OUTBOX_OPERATOR)
    clearing = Destination(name="clearing", topic="clearing", consumers=("clearing",))
    await save_destinations(operator, [clearing])

    def run(**values: object) -> None:
        with DRIVERS[driver](sender.dsns[OUTBOX_WRITER]) as names:
            exec(lines_of(driver), {**names, **values})  # noqa: S102 - our own guide

    assert len(lines_of(driver).splitlines()) == 3
    await asyncio.to_thread(run, trade_id=7, payload=b"\x00\xfftrade")
    with pytest.raises(Exception, match=r"payload was .* bytes, expected at most"):
        await asyncio.to_thread(run, trade_id=8, payload=b"x" * 2_000_000)
    trades = await sender.admin.fetch("SELECT trade_id FROM trade")
    messages = await sender.admin.fetch("SELECT destination, key, payload FROM outbox_message")
    assert [row["trade_id"] for row in trades] == [7]
    assert [tuple(row) for row in messages] == [("clearing", "trade-7", b"\x00\xfftrade")]
