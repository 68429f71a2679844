import os
import shlex
import subprocess

from chain_kernel.text import not_installed


def test_command_that_installs_an_extra_works_from_any_folder_and_without_an_index() -> None:
    """What lacks the package is installed, and that satisfies pip."""
    text, _, command = not_installed("msgspec", "cli").partition(": ")
    assert text == "msgspec is not installed, which is in the extra cli"
    done = subprocess.run(
        [*shlex.split(command), "--dry-run", "--no-deps", "--no-index"],
        cwd="/",
        env=os.environ | {"PATH": "", "PYTHONPATH": ""},  # as without an activated environment
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
