"""Names in the database that others chose cannot write lines of their own on a terminal."""

import asyncio
import json

import asyncpg
import pytest

from .conftest import Call, Ctl

HOSTILE = "svc\nchainctl: error: forged\r\x1b[2J\u202e"
UNDECODED = "svc\udcff"
"""What Python makes of a byte of the command line that is no UTF-8."""
ACT = ("--reason", "a test")
ESCAPED = "svc\\nchainctl: error: forged\\r\\x1b[2J\\u202e"


@pytest.fixture
def settings(database: str) -> dict[str, str]:
    """A chain whose leader and receiver have names that would clear the screen."""

    async def make() -> None:
        admin = await asyncpg.connect(database)
        await admin.execute("SELECT chain_create(7, decode(repeat('00', 32), 'hex'), 't', 0, 1000)")
        await admin.execute("UPDATE chain_head SET owner = $1", HOSTILE)
        await admin.execute(
            "INSERT INTO receiver_halt (chain_id, receiver, at_id, reason, detail) "
            "VALUES (7, $1, 0, 'x', $1)", HOSTILE,
        )  # fmt: skip
        await admin.close()

    asyncio.run(make())
    return {"CHAINCTL_DATABASE": database}


@pytest.mark.parametrize("command", ["status", "lag"])
def test_names_that_others_chose_are_escaped_in_tables_and_whole_in_json(
    ctl: Ctl, command: str
) -> None:
    shown = ctl(command, "--chain", 7)
    assert ESCAPED in shown.out
    assert all(line.isprintable() for line in shown.out.splitlines())
    noted = ctl(command, "--chain", 7, "--json")
    assert json.dumps(HOSTILE, ensure_ascii=False) in json.dumps(
        json.loads(noted.out), ensure_ascii=False
    )


@pytest.mark.parametrize(
    "command",
    [
        ("lag", "--name", "{}"), ("gaps", "--name", "{}"), ("unhalt", "{}", *ACT),
        ("receivers", "forget", "{}", *ACT), ("receivers", "reset", "{}", *ACT),
        ("receivers", "move", "{}", "--to", "0", *ACT), ("rejects", "--intake", "{}"),
        ("receive", "--output", "j", "--name", "{}"),
    ],
)  # fmt: skip
def test_name_that_is_no_text_is_refused(ctl: Ctl, command: tuple[str, ...]) -> None:
    named = [part.format(UNDECODED) for part in command]
    line = ctl.refused(*named, "--chain", 7)
    assert "svc\\udcff" in line


def test_journal_whose_name_is_no_text_names_its_receiver_all_the_same(
    call: Call, module_settings: dict[str, str], filled: int
) -> None:
    done = call(
        "receive", "--chain", filled, "--output", UNDECODED, "--json", settings=module_settings
    )
    assert done.code == 0, done
    report = json.loads(done.out)
    assert report["journal"] == report["stats"]["name"] == "svc\\udcff"
