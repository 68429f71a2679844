"""The stack as a whole: up, down, status, environment, reset."""

import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from chain_kernel.sql import LOGIN_ROLES
from local_stack import LocalStack, StackStatus
from local_stack.errors import FolderUnusable, StackMissing
from local_stack.process import LOOPBACK
from local_stack.stack import load_state
from tests.opened import connected

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]


def stack_in(directory: Path) -> LocalStack:
    # As `make demo` has it: Kafka starts for half the CPU time.
    return LocalStack(directory, is_long_run=False)


@pytest.fixture
def stack(server_folder: Path) -> Iterator[LocalStack]:
    made = stack_in(server_folder / "stack")
    try:
        yield made
    finally:
        made.down()


def process_ids(status: StackStatus) -> list[int | None]:
    return [server.process_id for server in status.servers]


async def test_stack_up_twice_down_up_and_reset(stack: LocalStack) -> None:
    first = stack.up()
    assert first.up
    environment = stack.environment()
    state_path = stack.directory / "state.json"
    assert stat.S_IMODE(state_path.stat().st_mode) == 0o600
    state = load_state(state_path)
    assert state is not None
    assert not any(password in repr(state) for password in state.passwords.values())

    lines: list[str] = []
    again = stack_in(stack.directory).up(lines.append)
    assert lines == ["PostgreSQL and Kafka are running already"]
    assert process_ids(again) == process_ids(first)

    for role in LOGIN_ROLES:
        async with connected(stack.dsn(role)) as connection:
            assert await connection.fetchval("SELECT current_user") == role
    stack.postgres().execute("CREATE TABLE kept AS SELECT 42 AS x", database="orderchain")

    stack.down()
    stack.down()
    down = stack.status()
    assert not down.up
    assert [server.running for server in down.servers] == [False, False]
    assert process_ids(down) == [None, None]
    assert stack.environment() == environment

    stack.up()
    assert stack.environment() == environment
    assert stack.postgres().execute("SELECT x FROM kept", database="orderchain") == "42"

    stack.reset()
    assert stack.status().servers == ()
    assert {path.name for path in stack.directory.iterdir()} == {".lock"}
    with pytest.raises(StackMissing, match="chainctl stack up"):
        stack.environment()


def test_stack_up_side_by_side_after_a_crash_of_both_starts_once(stack: LocalStack) -> None:
    stack.up()
    stack.postgres().kill()
    stack.kafka().kill()
    assert [server.running for server in stack.status().servers] == [False, False]
    found: list[StackStatus] = []
    threads = [
        threading.Thread(target=lambda: found.append(stack_in(stack.directory).up()))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert all(status.up for status in found)
    assert len({tuple(process_ids(status)) for status in found}) == 1


def test_stack_up_with_a_port_taken_meanwhile_moves(stack: LocalStack) -> None:
    stack.up()
    stack.down()
    port = stack.postgres().config.port
    lines: list[str] = []
    with socket.create_server((LOOPBACK, port)):
        assert stack.up(lines.append).up
    assert stack.postgres().config.port != port
    assert f"Port {port} is taken by another program" in lines[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as somebody else")
def test_stack_of_another_user_is_refused_in_one_line(stack: LocalStack) -> None:
    stack.up()
    os.seteuid(65_534)
    try:
        for command in (stack.up, stack.down, stack.reset, stack.status):
            with pytest.raises(FolderUnusable, match="Permission denied") as caught:
                command()
            assert "\n" not in str(caught.value)
    finally:
        os.seteuid(0)
    assert stack.status().up


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the servers as somebody else")
def test_stack_below_a_closed_folder_is_refused_and_the_folder_stays_closed(
    tmp_path: Path,
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(FolderUnusable, match="cannot pass through"):
        LocalStack(closed / "stack").up()
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700
