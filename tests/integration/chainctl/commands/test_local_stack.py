from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.chainctl.conftest import Call, Refused


def test_stack_that_was_never_up_is_told_of(call: Call, refused: Refused, tmp_path: Path) -> None:
    settings = {"CHAINCTL_STACK_DIR": str(tmp_path / "stack")}
    status = call("stack", "status", "--json", settings=settings)
    assert status.code == 1
    assert json.loads(status.out)["up"] is False
    assert "there is no stack in" in status.err
    assert "chainctl stack up" in refused("stack", "env", settings=settings)
    assert call("stack", "down", settings=settings).code == 0
    assert call("stack", "reset", settings=settings).code == 0
    assert not (tmp_path / "stack").exists()


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
        shell = subprocess.run(
            ["bash", "-c", 'eval "$1" && env', "-", exported],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
        found = dict(line.split("=", 1) for line in shell.stdout.splitlines() if "=" in line)
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
    assert call("stack", "reset", settings=settings).code == 0
