"""What the help promises: examples that are taken as they stand, and completion in a real shell."""

import os
import re
import shutil
import sys
from pathlib import Path

import click
import pytest

import chainctl
from chainctl.main import COMPLETION_VARIABLE, cli, main
from chainctl.options import EXAMPLES
from chainctl.settings import SETTING, SETTING_NAMES, has_flag
from tests.cases import case
from tests.command_lines import command_lines, commands_of, refusal_of
from tests.programs import output_of

ROOT = Path(chainctl.__file__).parent.parent
LEAVES = dict(commands_of(cli))
OPTIONS_MAX = 16


def test_help_of_a_command_has_its_settings_apart_and_an_example_that_is_taken(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert set(EXAMPLES) == set(LEAVES), "each command has one"
    flags = {f"--{name.replace('_', '-')}" for name in SETTING_NAMES} | {"--config"}
    for path in LEAVES:
        with case(path):
            assert main([*path.split(), "--help"]) == 0
            text, _, example = capsys.readouterr().out.partition("\nExample:\n")
            own, _, settings = text.partition("\nSettings:\n")
            named = re.compile(r"^  (--[a-z-]+)", re.MULTILINE)
            assert not flags & {*named.findall(own)}
            assert flags >= {*named.findall(settings)}
            assert example.rstrip() == f"  chainctl {path} {EXAMPLES[path]}"
            for words in command_lines(example):
                assert refusal_of(words) is None


def test_help_of_a_group_has_the_example_of_its_first_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    groups = {path.rpartition(" ")[0] for path in LEAVES} - {"", *LEAVES}
    assert groups >= {"chain", "chain verify-mark", "outbox", "outbox dead"}
    for path in groups:
        with case(path):
            assert main([*path.split(), "--help"]) == 0
            example = capsys.readouterr().out.partition("\nExample:\n")[2].strip()
            first = next(name for name in EXAMPLES if name.startswith(f"{path} "))
            assert example == f"chainctl {first} {EXAMPLES[first]}"


KINDS: dict[str, str] = {"DIR|URL": "FILE", "DIR": "FILE", "FOLDER": "FILE", "FILE.html": "FILE"}
"""Metavars of one kind: a place for files."""


def test_an_option_takes_one_kind_of_value_in_every_command() -> None:
    taken = dict[str, set[str]]()
    for command in LEAVES.values():
        for option in command.params:
            if isinstance(option, click.Option):
                kind = "" if option.is_flag else option.metavar or option.type.name
                for flag in option.opts:
                    taken.setdefault(flag, set()).add(KINDS.get(kind, kind))
    assert {flag: kinds for flag, kinds in taken.items() if len(kinds) > 1} == {}


def test_no_command_has_more_than_sixteen_options_of_its_own() -> None:
    shared = {"--chain", "--json", "--demo", "--http", "--reason", "--actor", "--dry-run"}
    for path, command in LEAVES.items():
        own = [
            option.opts[0] for option in command.params
            if isinstance(option, click.Option) and not (option.name or "").startswith(SETTING)
            and not shared & {*option.opts}
        ]  # fmt: skip
        assert len(own) <= OPTIONS_MAX, (path, own)


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
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    shown = output_of(bash, "-c", script, "bash", *words, env=environment)
    assert set(shown.split()) == found
