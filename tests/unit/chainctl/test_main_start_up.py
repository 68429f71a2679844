import sys
from pathlib import Path

import pytest

import chainctl
from chainctl.main import COMMANDS, cli
from tests.programs import completed

HEAVY = ("asyncpg", "aiokafka", "pyspark", "rich", "zstandard", "sequencer", "matcher_receiver",
         "gapfill", "outbox.sender", "chain_verifier", "local_stack")  # fmt: skip


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["schema", "print"], ["schema", "print", "--part", "outbox"]],
)
def test_command_that_needs_no_server_imports_none_of_the_heavy_packages(
    arguments: list[str],
) -> None:
    script = (
        "import sys; from chainctl.main import main; code = main(sys.argv[1:]); "
        f"print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr); sys.exit(code)"
    )
    folder = Path(chainctl.__file__).parent.parent
    done = completed(sys.executable, "-c", script, *arguments, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "[]\n")


@pytest.mark.parametrize("name", list(COMMANDS))
def test_command_has_a_module_and_a_help_of_its_own(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = cli.get_command(None, name)  # type: ignore[arg-type] # it looks at the name alone
    assert command is not None
    assert command.help
    assert len(COMMANDS[name]) < 65
