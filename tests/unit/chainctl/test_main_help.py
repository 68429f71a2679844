"""What the help promises: examples that are taken as they stand, and completion in a real shell."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

import chainctl
from chainctl import main as main_module
from chainctl.main import COMMANDS, COMPLETION_VARIABLE, cli, main
from chainctl.options import EXAMPLES
from chainctl.settings import SETTING_NAMES, has_flag
from chainctl.units import Size, Span
from tests.cases import case
from tests.command_lines import command_lines, commands_of, refusal_of

if TYPE_CHECKING:
    pass

ROOT = Path(chainctl.__file__).parent.parent


LEAVES = dict(commands_of(cli))


def test_help_shows_the_commands_in_five_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    blocks = map(str.splitlines, capsys.readouterr().out.split("\n\n"))
    rows_of = {title[:-1]: rows for title, *rows in blocks if title.endswith(":")}
    assert list(rows_of) == ["Options", *main_module.GROUPS]
    rows = [row for title in main_module.GROUPS for row in rows_of[title]]
    assert [row.split()[0] for row in rows] == list(COMMANDS)
    assert len({row.index(COMMANDS[row.split()[0]]) for row in rows}) == 1  # one column


def test_help_of_a_command_has_its_settings_apart_and_an_example_that_is_taken(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert set(EXAMPLES) <= set(LEAVES)
    flags = {f"--{name.replace('_', '-')}" for name in SETTING_NAMES} | {"--config"}
    for path in LEAVES:
        with case(path):
            assert main([*path.split(), "--help"]) == 0
            text, _, example = capsys.readouterr().out.partition("\nExample:\n")
            own, _, settings = text.partition("\nSettings:\n")
            named = re.compile(r"^  (--[a-z-]+)", re.MULTILINE)
            # Receivers have an option --name of their own.
            assert not (flags - {"--name"}) & {*named.findall(own)}
            assert flags >= {*named.findall(settings)}
            assert example.rstrip() == (
                f"  chainctl {path} {EXAMPLES[path]}" if path in EXAMPLES else ""
            )
            for words in command_lines(example):
                assert refusal_of(words) is None


def test_options_have_one_form_in_every_command() -> None:
    words = re.compile(r"seconds|minutes|hours|bytes|idle|older|since|every|wait")
    for path, command in LEAVES.items():
        with case(path):
            options = {option for each in command.params for option in each.opts}
            if "--reason" in options:
                assert {"--actor", "--dry-run", "--json"} <= options
            for option in command.params:
                name = str(option.name)
                is_number = isinstance(
                    option.type, click.types.FloatParamType | click.types.IntParamType
                )
                assert not (words.search(name) and is_number), name
                if option.metavar in ("SPAN", "SIZE"):
                    assert isinstance(option.type, Span | Size), name


def test_page_of_operators_names_every_command_and_setting() -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    cells = [
        set(re.findall(r"[\w-]+", row)) for row in re.findall(r"^\| [^|]* \| (.*) \|$", page, re.M)
    ]
    for path in LEAVES:
        assert any(set(path.split()) <= cell for cell in cells), path
    for name in SETTING_NAMES:
        (row,) = re.findall(rf"^\| [^|]*`{name}`[^|]* \| (.*)", page, re.M)
        assert has_flag(name) is ("no flag" not in row), name


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["chainctl", "se"], {"sequence", "seal"}),
        (["chainctl", "outbox", "dead", "re"], {"retry"}),
        (["chainctl", "sequence", "--key"], {"--key-column", "--key-window-rows"}),
        (["chainctl", "sequence", "--id-strategy", "t"], {"time"}),
        (["chainctl", "schema", "check", "--part", "in"], {"inbox"}),
    ],
)
def test_bash_completes_commands_options_and_values(
    words: list[str], found: set[str], tmp_path: Path
) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    program = tmp_path / "chainctl"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m chainctl "$@"\n')
    program.chmod(0o755)
    script = (
        f'eval "$({COMPLETION_VARIABLE}=bash_source chainctl)"\n'
        'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _chainctl_completion chainctl\n'
        "printf '%s\\n' \"${COMPREPLY[@]}\"\n"
    )
    done = subprocess.run(
        [bash, "-c", script, "bash", *words],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(done.stdout.split()) == found, done


def test_commands_are_completed_without_being_imported() -> None:
    script = (
        "import sys; from chainctl.main import main; main();"
        "sys.exit(any(name.startswith('chainctl.commands.') for name in sys.modules))"
    )
    environ = {COMPLETION_VARIABLE: "zsh_complete", "COMP_WORDS": "chainctl ", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **environ},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done
    assert all(f"plain\n{name}\n{line}\n" in done.stdout for name, line in COMMANDS.items())
