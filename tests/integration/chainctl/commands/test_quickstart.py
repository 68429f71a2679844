"""The quickstart as a newcomer runs it, on a server of its own."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orderchain.pytest_plugin import make_server_folder

CHAINCTL = Path(sys.executable).with_name("chainctl")

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(240)]


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """Without settings that would lead to other servers, and without Java."""
    folder = make_server_folder()
    kept = {name: text for name, text in os.environ.items() if not name.startswith("CHAINCTL_")}
    environment = {
        **kept, "CHAINCTL_STACK_DIR": str(folder / "stack"), "JAVA_HOME": "/nowhere",
    }  # fmt: skip
    yield environment
    subprocess.run([CHAINCTL, "stack", "down"], env=environment, check=True)
    shutil.rmtree(folder)


def test_quickstart_needs_postgres_alone_and_what_it_says_next_works(
    environment: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "first"
    line = [str(CHAINCTL), "quickstart", "--folder", str(folder)]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"order \d+ is missing", done.stdout)
    said = re.findall(
        r"^  (cd .*|chainctl (?:status|tail|verify) .*?)(?:  .*)?$", done.stdout, re.M
    )
    assert len(said) == 4, said
    script = "set -e\n" + "\n".join(said)
    environment["PATH"] = f"{CHAINCTL.parent}:{environment['PATH']}"
    next_ = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert next_.returncode == 0, next_.stdout + next_.stderr
    assert "complete" in next_.stdout

    again = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert again.returncode == 2
    assert str(folder) in again.stderr
    line = line[:2]  # a folder of its own choice, and the next chain
    for name in ("orderchain-quickstart", "orderchain-quickstart-2"):
        subprocess.run(line, env=environment, cwd=tmp_path, capture_output=True, check=True)
        assert (tmp_path / name / "journal.jsonl").exists()
