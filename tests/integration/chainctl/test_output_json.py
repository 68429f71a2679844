"""`--json` is one JSON document in every command: all of them are walked, and none is forgotten."""

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import click
import pytest

import outbox
from chainctl.main import cli
from outbox import Message, draw_message_ids
from outbox.consumer.delivery import Delivery
from outbox.consumer.inbox import REFUSED, Inbox
from tests.builders.orders import order_file
from tests.command_lines import commands_of
from tests.integration.chainctl.conftest import Ctl
from tests.opened import connected

ELSEWHERE = {
    "demo", "stack up", "stack env", "stack status", "archive", "retention", "repair", "seal show",
    "chain verify-mark list", "chain verify-mark revoke", "receivers forget", "receivers move",
    "receivers reset", "unhalt", "pass-over", "step-down", "takeover", "outbox relay",
    "topic create", "verify replay", "verify table", "state",
}  # fmt: skip
"""Those that take minutes or another stack: the tests of each read its document."""

ROWS = {
    "chain list", "lag", "gaps", "tail", "rejects", "acts", "doctor",
    "outbox list", "outbox status", "outbox acts",
    "outbox destination list", "outbox retry", "outbox abandon", "outbox resend",
    "outbox dead list", "outbox dead show", "outbox dead acts",
    "outbox dead retry", "outbox dead abandon",
}  # fmt: skip
"""Those that show rows: an array. All others show one thing: an object."""

WHY = ("--reason", "a test", "--all")


def takes_json(command: click.Command) -> bool:
    return any(each.name == "as_json" for each in command.params)


WITH_JSON = {path: command for path, command in commands_of(cli) if takes_json(command)}


def calls(chain: int, folder: Path, ids: list[UUID], dead: UUID) -> dict[str, tuple[object, ...]]:
    """What each command is called with; acts come after those that look."""
    orders = order_file(folder / "orders.csv", 1)
    on_chain = ("--chain", chain)
    return {
        "config show": (), "messages token": (),
        "schema check": (), "chain create": (chain,), "chain list": (),
        "sequence": (*on_chain, "--input", orders), "status": on_chain, "lag": on_chain,
        "gaps": on_chain, "seal export": on_chain, "leader": on_chain,
        "tail": on_chain, "rejects": on_chain, "acts": on_chain,
        "sizes": (), "doctor": (), "show": (1, *on_chain),
        "receive": (*on_chain, "--output", folder / "journal"),
        "verify": (*on_chain, "--source", "database", "--local"),
        "outbox destination set": ("json", "--topic", "t", "--consumer", "a", "--consumer", "b"),
        "outbox destination list": (),
        "outbox list": (), "outbox show": (ids[0],), "outbox status": (),
        "outbox acts": (),
        "outbox keep": (), "outbox resend": WHY, "outbox retry": WHY, "outbox abandon": WHY,
        "outbox dead list": (), "outbox dead show": (dead,), "outbox dead acts": (),
        "outbox dead retry": (*WHY, "--dry-run"), "outbox dead abandon": WHY,
    }  # fmt: skip


def test_every_command_with_json_is_called_here_or_read_elsewhere(tmp_path: Path) -> None:
    (message_id,) = draw_message_ids(1)
    called = set(calls(1, tmp_path, [message_id], message_id))
    assert called | ELSEWHERE == set(WITH_JSON)
    assert set(WITH_JSON) >= ROWS


def test_what_streams_says_in_its_help_that_it_writes_json_lines() -> None:
    command = dict(commands_of(cli))["fill"]
    # A command keeps its help option as its first context names it.
    context = click.Context(command, **cli.context_settings)
    assert "JSON Lines" in " ".join(command.get_help(context).split())


@pytest.fixture
def things(module_settings: dict[str, str], ctl: Ctl) -> tuple[list[UUID], UUID]:
    """An abnormal message, and a dead letter, each for two consumers."""
    for part in ("outbox", "inbox"):
        ctl.done("schema", "apply", "--part", part)
    place = ("--topic", "t", "--consumer", "a", "--consumer", "b")
    ctl.done("outbox", "destination", "set", "json", *place)
    return asyncio.run(_things(module_settings["CHAINCTL_DATABASE"]))


async def _things(database: str) -> tuple[list[UUID], UUID]:
    ids = draw_message_ids(2)
    async with connected(database) as connection, connection.transaction():
        await outbox.add_many(connection, [Message(each, "json", b"x") for each in ids])
        abnormal = "UPDATE outbox_pending SET status = 3 WHERE message_id = $1"
        await connection.execute(abnormal, ids[0])
        for consumer in ("a", "b"):
            inbox = await Inbox.open(connection, consumer, 10.0)
            letter = _letter(ids[0])
            await inbox.bury(connection, letter, failures=1, reason=REFUSED, error="no")
    return ids, ids[0]


def _letter(message_id: UUID) -> Delivery:
    return Delivery(
        message_id=message_id, destination="json", payload=b"x", key_bytes=None, headers={},
        topic="t", partition=0, offset=0, received_at=datetime.now(UTC),
    )  # fmt: skip


def test_json_of_every_command_is_one_document(
    ctl: Ctl, free_chain: int, tmp_path: Path, things: tuple[list[UUID], UUID]
) -> None:
    shown: dict[str, Any] = {}
    for path, arguments in calls(free_chain, tmp_path, *things).items():
        done = ctl(*path.split(), *arguments, "--json")
        assert done.code in (0, 1), (path, done)
        shown[path] = json.loads(done.out)  # raises for two documents
        assert isinstance(shown[path], list if path in ROWS else dict), path
        assert done.out.count("\n") == 1 or path == "verify", path
    assert len(shown["outbox dead show"]) == 2
    assert len(shown["outbox dead list"]) == 2
