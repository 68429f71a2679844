import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from chainctl.admin import apply_schema
from chainctl.commands.leader import change_leader
from chainctl.options import ActByHand
from chainctl.settings import Settings
from tests.deadlines import deadline
from tests.integration.chainctl.conftest import must
from tests.opened import connected
from tests.pipes import stdin_of, stdout_of

EXAMPLES = Path(__file__).parents[3] / "examples"
SEED = 3
IDLE_SECONDS = "1.5"


class Examples:
    """Starts the examples as a user would."""

    def __init__(self, environment: dict[str, str], chain_id: int) -> None:
        self._environment = os.environ | environment
        self._chain_id = chain_id

    async def start(self, name: str, *arguments: str, stdin: Any = PIPE) -> Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, EXAMPLES / name, str(self._chain_id), *arguments,
            stdin=stdin, stdout=PIPE, stderr=PIPE, env=self._environment,
        )  # fmt: skip

    async def run(self, name: str, *arguments: str, given: bytes = b"") -> list[str]:
        process = await self.start(name, *arguments)
        async with deadline():
            stdout, stderr = await process.communicate(given)
        assert process.returncode == 0, stderr.decode()
        return stdout.decode().splitlines()

    async def refused(self, name: str, *arguments: str, code: int) -> str:
        """Run an example that ends with `code`, and return the one line that says why."""
        process = await self.start(name, *arguments)
        async with deadline():
            _, stderr = await process.communicate()
        said = [line for line in stderr.decode().splitlines() if line.startswith("example-")]
        assert process.returncode == code, stderr.decode()
        assert "Traceback" not in stderr.decode()
        (line,) = said
        return line

    async def cut_own_connection(self) -> None:
        """End the connection that an example has opened itself: the engine's have names."""
        async with connected(self._environment["CHAINCTL_DATABASE"]) as connection:
            cut = await connection.fetch(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> "
                "pg_backend_pid() AND datname = current_database() AND application_name = ''"
            )
            assert cut

    async def overwrite(self) -> None:
        """Change the payloads of the chain's last page, as the owner could."""
        async with connected(self._environment["CHAINCTL_DATABASE"]) as connection:
            await connection.execute(
                "UPDATE chain_page SET payloads[1] = 'x' WHERE chain_id = $1", self._chain_id
            )

    async def positions(self) -> dict[str, int]:
        async with connected(self._environment["CHAINCTL_DATABASE"]) as connection:
            rows = await connection.fetch(
                "SELECT symbol, quantity FROM example_position WHERE chain_id = $1", self._chain_id
            )
        return dict(map(tuple, rows))


@pytest.fixture
def examples(stack_environment: dict[str, str], chain_id: int) -> Examples:
    return Examples(stack_environment, chain_id)


def orders(count: int, client: str) -> list[dict[str, Any]]:
    draw = Random(SEED)
    return [
        {
            "key": f"{client}/{number}",
            "symbol": draw.choice(["ALPHA", "BRAVO"]),
            "side": draw.choice("BS"),
            "qty": draw.randint(1, 900),
        }
        for number in range(1, count + 1)
    ]


def lines(some: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(order).encode() + b"\n" for order in some)


def expected(some: list[dict[str, Any]]) -> Counter[str]:
    found: Counter[str] = Counter()
    for order in some:
        found[order["symbol"]] += order["qty"] if order["side"] == "B" else -order["qty"]
    return found


async def test_sequencing_example_answers_each_order_with_its_place(examples: Examples) -> None:
    some = orders(500, "anna")
    answers = [
        json.loads(line) for line in await examples.run("sequencing_service.py", given=lines(some))
    ]
    assert [answer["key"] for answer in answers] == [order["key"] for order in some]
    ids = [answer["id"] for answer in answers]
    assert [answer["pid"] for answer in answers] == [0, *ids[:-1]]


async def test_matching_example_with_a_kill_and_a_restart_applies_each_order_once(
    examples: Examples,
) -> None:
    early, late = orders(400, "anna"), orders(300, "ben")
    await examples.run("sequencing_service.py", given=lines(early))
    matching = await examples.start("matching_service.py")
    async with deadline():
        assert (await stdout_of(matching).readline()).startswith(b"applied up to id ")
    matching.send_signal(signal.SIGKILL)
    await matching.communicate()
    await examples.run("sequencing_service.py", given=lines(late))
    await examples.run("matching_service.py", IDLE_SECONDS)
    assert await examples.positions() == expected(early + late)
    assert await examples.run("matching_service.py", IDLE_SECONDS) == []
    assert await examples.positions() == expected(early + late)


@pytest.mark.nightly
async def test_matching_example_beside_the_sequencing_one_follows_it_live(
    examples: Examples,
) -> None:
    some = orders(300, "cleo")
    sequencing = await examples.start("sequencing_service.py")
    matching = await examples.start("matching_service.py")
    try:
        async with deadline():
            stdin_of(sequencing).write(lines(some))
            for _ in some:
                last = json.loads(await stdout_of(sequencing).readline())
            end = b"applied up to id %d\n" % last["id"]
            while (line := await stdout_of(matching).readline()) != end:
                assert line.startswith(b"applied up to id ")
        assert await examples.positions() == expected(some)
    finally:
        matching.kill()
        stdin_of(sequencing).close()
        await asyncio.gather(matching.communicate(), sequencing.wait())


@pytest.mark.nightly
async def test_pipelined_example_answers_and_ends_with_its_lead(
    examples: Examples, stack_environment: dict[str, str], chain_id: int
) -> None:
    process = await examples.start("pipelined_gateway.py", "0")
    async with deadline():
        port = int((await stdout_of(process).readline()).split()[1])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(lines(orders(2, "hugo")))
        answers = [json.loads(await reader.readline()) for _ in range(2)]
        assert [answer["pid"] for answer in answers] == [0, answers[0]["id"]]
        owner = Settings(database=stack_environment["CHAINCTL_DATABASE"])
        act = ActByHand("test", "a drill", is_dry_run=False)
        await change_leader(owner, chain_id, "step-down", act)
        _, stderr = await process.communicate()
    writer.close()
    assert process.returncode == 3
    assert "Traceback" not in stderr.decode()


@pytest.mark.nightly
async def test_matching_example_with_a_changed_row_ends_with_one_line_and_exit_code_3(
    examples: Examples,
) -> None:
    await examples.run("sequencing_service.py", given=lines(orders(1, "dora")))
    await examples.overwrite()
    said = await examples.refused("matching_service.py", IDLE_SECONDS, code=3)
    assert "was changed" in said
    assert "halted at 0" in await examples.refused("matching_service.py", IDLE_SECONDS, code=3)
    assert await examples.positions() == {}


@pytest.fixture
def environment_with_outbox(stack_environment: dict[str, str]) -> dict[str, str]:
    must("schema", "apply", "--part", "outbox", settings=stack_environment)
    return stack_environment


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["matching", "sequencing", "trading"])
async def test_example_on_a_chain_that_is_not_there_ends_with_one_line_and_exit_code_2(
    environment_with_outbox: dict[str, str], name: str
) -> None:
    nowhere = Examples(environment_with_outbox, 2**31 - 1)
    assert "2147483647" in await nowhere.refused(f"{name}_service.py", code=2)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["clearing", "matching", "sequencing", "trading"])
async def test_example_without_a_database_ends_with_one_line_and_exit_code_2(
    stack_environment: dict[str, str], name: str
) -> None:
    nowhere = "postgresql://somebody@127.0.0.1:1/orders"
    databases = dict.fromkeys(["CHAINCTL_DATABASE", "CHAINCTL_GAP_DATABASE"], nowhere)
    without = Examples(stack_environment | databases, 1)
    said = await without.refused(f"{name}_service.py", code=2)
    assert "expected a server that listens at 127.0.0.1:1" in said


@pytest.mark.nightly
async def test_sequencing_example_takes_a_file_and_an_order_that_is_too_large(
    examples: Examples, tmp_path: Path
) -> None:
    file = tmp_path / "orders.jsonl"
    large = {"key": "large", "text": "x" * 2**20}
    file.write_bytes(lines([*orders(2, "fred"), large]))
    with file.open("rb") as given:
        process = await examples.start("sequencing_service.py", stdin=given)
        async with deadline():
            stdout, stderr = await process.communicate()
    assert process.returncode == 0, stderr.decode()
    answers = [json.loads(line) for line in stdout.splitlines()]
    assert [answer.get("id") for answer in answers] == [1, 2, None]
    assert "expected" in answers[2]["refused"]
    piped = await examples.run("sequencing_service.py", given=lines([large, *orders(2, "fred")]))
    assert [json.loads(line).get("id") for line in piped] == [None, 1, 2]


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["matching", "trading"])
async def test_example_whose_own_connection_is_cut_ends_with_one_line_and_exit_code_3(
    environment_with_outbox: dict[str, str], chain_id: int, name: str
) -> None:
    examples = Examples(environment_with_outbox, chain_id)
    process = await examples.start(f"{name}_service.py")
    await examples.run("sequencing_service.py", given=lines(orders(1, "gina")))
    async with deadline():
        await stdout_of(process).readline()
    await examples.cut_own_connection()
    await examples.run("sequencing_service.py", given=lines(orders(2, "gina")))
    async with deadline():
        _, stderr = await process.communicate()
    assert process.returncode == 3, stderr.decode()
    assert "Traceback" not in stderr.decode()
    assert "example-" in stderr.decode()


async def test_clearing_example_that_is_refused_ends_with_one_line_and_exit_code_2_or_3(
    stack_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(stack_environment["CHAINCTL_DATABASE"]) as owner:
        await apply_schema(owner, ("inbox",))
        await owner.execute("CREATE DOMAIN example_balance AS integer")
    said = await Examples(stack_environment, 1).refused("clearing_service.py", code=3)
    assert "already exists" in said
    monkeypatch.delenv("CHAINCTL_DATABASE", raising=False)
    unset = {name: value for name, value in stack_environment.items() if "DATABASE" not in name}
    said = await Examples(unset, 1).refused("clearing_service.py", code=2)
    assert "database was ''" in said


async def test_sequencing_example_refuses_a_bad_order_and_serves_the_others(
    examples: Examples,
) -> None:
    good = orders(3, "ella")
    too_long = {"key": "k" * 1_000}
    given = [lines([good[0]]), b"{\n", b"{}\n", lines([good[1], too_long]), lines([good[2]])]
    said = await examples.run("sequencing_service.py", given=b"".join(given))
    answers = [json.loads(line) for line in said]
    assert [answer.get("key") for answer in answers] == [
        "ella/1", None, None, "ella/2", None, "ella/3"
    ]  # fmt: skip
    assert [answer["id"] for answer in answers if "key" in answer] == [1, 2, 3]
    assert [answer["line"] for answer in answers[1:3]] == ["{", "{}"]
    assert "missing required field `key`" in answers[2]["refused"]
    assert "key was '1000 bytes', expected 1 to 512 bytes" in answers[4]["refused"]
