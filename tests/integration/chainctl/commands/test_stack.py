import json
import os
import pty
from pathlib import Path

import pytest
from msgspec.structs import replace

from local_stack.stack import load_state, save_state
from tests.integration.chainctl.conftest import Call, Refused, Start
from tests.programs import output_of


def test_stack_that_was_never_up_is_reported(call: Call, refused: Refused, tmp_path: Path) -> None:
    settings = {"CHAINCTL_STACK_DIR": str(tmp_path / "stack")}
    status = call("stack", "status", "--json", settings=settings)
    assert status.code == 1
    assert json.loads(status.out)["up"] is False
    assert "there is no stack in" in status.err
    assert "chainctl stack up" in refused("stack", "env", settings=settings)
    assert call("stack", "down", settings=settings).code == 0
    assert call("stack", "reset", settings=settings).code == 0
    assert not (tmp_path / "stack").exists()


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """Data of a stack."""
    made = tmp_path / "stack" / "postgres" / "data"
    made.mkdir(parents=True)
    return made


def test_stack_is_not_reset_without_a_word_where_nobody_can_be_asked(
    call: Call, refused: Refused, stored: Path, tmp_path: Path
) -> None:
    settings = {"CHAINCTL_STACK_DIR": str(tmp_path / "stack")}
    line = refused("stack", "reset", settings=settings)
    assert f"whether {tmp_path / 'stack'} may be deleted: --yes (see" in line
    assert stored.is_dir()
    assert call("stack", "reset", "--yes", settings=settings).code == 0
    assert not stored.exists()


@pytest.mark.parametrize(
    ("answer", "code", "is_there"), [("n", 2, True), ("", 2, True), ("y", 0, False)]
)
def test_stack_is_reset_after_a_yes_on_the_terminal(
    start: Start, stored: Path, tmp_path: Path, answer: str, code: int, is_there: bool
) -> None:
    settings = {"CHAINCTL_STACK_DIR": str(tmp_path / "stack")}
    ours, theirs = pty.openpty()
    try:
        os.write(ours, f"{answer}\n".encode())
        process = start("stack", "reset", settings=settings, stdin=theirs)
        out, err = process.communicate()
    finally:
        os.close(ours)
        os.close(theirs)
    assert (process.returncode, out) == (code, ""), err
    assert f"Delete all databases and topics in {tmp_path / 'stack'}? [y/N]" in err
    assert ("nothing was deleted" in err) is is_there
    assert stored.exists() is is_there


@pytest.mark.nightly
@pytest.mark.postgres
@pytest.mark.kafka
def test_stack_comes_up_is_reached_by_its_environment_and_goes_away(
    call: Call, server_folder: Path
) -> None:
    settings = {"CHAINCTL_STACK_DIR": str(server_folder / "stack")}
    up = call("stack", "up", "--json", settings=settings)
    try:
        assert up.code == 0, up
        assert json.loads(up.out)["up"] is True
        exported = call("stack", "env", settings=settings).out
        assert all(line.startswith("export CHAINCTL_") for line in exported.splitlines())
        shown = output_of("bash", "-c", 'eval "$1" && env', "-", exported)
        found = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
        reached = {name: value for name, value in found.items() if name.startswith("CHAINCTL_")}
        assert json.loads(call("stack", "env", "--json", settings=settings).out).items() <= (
            reached.items()
        )
        assert call("schema", "apply", settings=reached).code == 0
        assert call("chain", "create", 1, settings=reached).code == 0
        assert call("stack", "status", settings=settings).code == 0
    finally:
        down = call("stack", "down", settings=settings)
    assert down.code == 0, down
    assert call("stack", "status", settings=settings).code == 1
    assert call("stack", "reset", "--yes", settings=settings).code == 0


@pytest.mark.nightly
@pytest.mark.postgres
def test_stack_without_kafka_takes_back_the_setting_of_another_stack(
    call: Call, server_folder: Path
) -> None:
    settings = {"CHAINCTL_STACK_DIR": str(server_folder / "stack")}
    try:
        assert call("stack", "up", "--no-kafka", settings=settings).code == 0
        exported = call("stack", "env", settings=settings).out
        path = server_folder / "stack" / "state.json"
        state = load_state(path)
        assert state is not None
        save_state(path, replace(state, has_kafka=True))  # as of a stack that once had one
        assert "CHAINCTL_KAFKA=" in call("stack", "env", settings=settings).out
        assert call("stack", "up", "--no-kafka", settings=settings).code == 0
        assert call("stack", "env", settings=settings).out == exported
        assert call("stack", "status", settings=settings).code == 0
    finally:
        assert call("stack", "reset", "--yes", settings=settings).code == 0
    earlier = "export CHAINCTL_KAFKA=127.0.0.1:1"
    shown = output_of("bash", "-c", f'{earlier}; eval "$1" && env', "-", exported)
    assert "CHAINCTL_DATABASE=" in shown
    assert "CHAINCTL_KAFKA=" not in shown
