import os
import shlex

from chain_kernel.text import not_installed
from tests.programs import output_of


def test_command_that_installs_an_extra_works_from_any_folder_and_without_an_index() -> None:
    """What lacks the package is installed, and that satisfies pip."""
    text, _, command = not_installed("msgspec", "cli").partition(": ")
    assert text == "msgspec is not installed, which is in the extra cli"
    alone = os.environ | {"PATH": "", "PYTHONPATH": ""}  # as without an activated environment
    output_of(*shlex.split(command), "--dry-run", "--no-deps", "--no-index", cwd="/", env=alone)
