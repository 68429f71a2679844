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
from chainctl.settings import SETTING_NAMES, has_flag, load_settings
from chainctl.units import Size, Span
from tests.cases import case
from tests.command_lines import command_lines, refusal_of

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(chainctl.__file__).parent.parent


def walk(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from walk(found, (*path, name))


LEAVES = dict(walk(cli))


def test_every_command_has_examples_and_nothing_else_has() -> None:
    assert set(EXAMPLES) == {"", *LEAVES}


def test_help_shows_the_commands_in_five_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    blocks = map(str.splitlines, capsys.readouterr().out.split("\n\n"))
    rows_of = {title[:-1]: rows for title, *rows in blocks if title.endswith(":")}
    assert list(rows_of) == ["Options", *main_module.GROUPS, "Examples"]
    assert len(main_module.GROUPS) == 5
    rows = [row for title in main_module.GROUPS for row in rows_of[title]]
    assert [row.split()[0] for row in rows] == list(COMMANDS)
    assert len({row.index(COMMANDS[row.split()[0]]) for row in rows}) == 1  # one column


def test_help_of_a_command_has_its_settings_apart(capsys: pytest.CaptureFixture[str]) -> None:
    for path in LEAVES:
        with case(path):
            assert main([*path.split(), "--help"]) == 0
            own, _, settings = capsys.readouterr().out.partition("\nSettings:\n")
            flags = {f"--{name.replace('_', '-')}" for name in SETTING_NAMES} | {"--config"}
            shown = re.compile(r"^  (--[a-z-]+)", re.MULTILINE)
            # Receivers have an option --name of their own.
            assert not (flags - {"--name"}) & {*shown.findall(own)}
            assert flags >= {*shown.findall(settings.partition("\nExamples:\n")[0])}


VIEWS = (
    "status", "top", "leader", "receivers list", "lag", "gaps", "tail", "rejects", "acts", "sizes",
    "outbox status", "outbox list", "outbox acts", "outbox dead list", "outbox dead acts",
    "doctor", "show", "chain list",
)  # fmt: skip


def test_view_can_be_watched_and_is_json_for_machines() -> None:
    for path in VIEWS:
        with case(path):
            assert {"watch_seconds", "as_json"} <= {each.name for each in LEAVES[path].params}


ACTS = sorted(path for path, command in LEAVES.items()
              if any(each.name == "reason" for each in command.params))  # fmt: skip


def test_act_by_hand_takes_an_actor_and_a_dry_run() -> None:
    assert len(ACTS) > 10
    for path in ACTS:
        options = {option for each in LEAVES[path].params for option in each.opts}
        assert {"--actor", "--dry-run", "--json"} <= options, path


GROUPS = sorted({path.rpartition(" ")[0] for path in LEAVES} - {""})


def test_help_of_a_group_ends_with_examples_of_its_commands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for path in GROUPS:
        with case(path):
            assert main([*path.split(), "--help"]) == 0
            about, _, examples = capsys.readouterr().out.partition("\nExamples:\n")
            assert "..." not in about.partition("\nCommands:\n")[2], "a sentence that was cut"
            shown = examples.splitlines()
            assert 1 <= len(shown) <= 3
            known = {line: name for name, lines in EXAMPLES.items() for line in lines}
            found = [known[line.strip()].removeprefix(f"{path} ").split()[0] for line in shown]
            assert len(set(found)) == len(found)


def test_example_is_taken_as_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    for path in EXAMPLES:
        with case(path):
            lines = EXAMPLES[path]
            assert 1 <= len(lines) <= 3
            assert main([*path.split(), "--help"]) == 0
            shown = capsys.readouterr().out
            for line in lines:
                assert f"\n  {line}\n" in shown  # whole, however narrow the terminal
                assert len(line) <= 95
                calls = [words for words in command_lines(line) if words]
                assert any(words[: len(path.split())] == path.split() for words in calls)
                for words in calls:
                    assert refusal_of(words) is None, line
                    assert settings_are_taken(words), line


def settings_are_taken(words: list[str]) -> bool:
    """Return True: the flags of settings have values that are taken; raises where one is not."""
    flags = {f"--{name.replace('_', '-')}": name for name in SETTING_NAMES}
    given = {flags[word]: words[at + 1] for at, word in enumerate(words) if word in flags}
    return load_settings(given, {}) is not None


def test_option_of_time_or_size_takes_a_unit() -> None:
    for path in LEAVES:
        with case(path):
            words = re.compile(r"seconds|minutes|hours|bytes|idle|older|since|watch|every|wait")
            for option in LEAVES[path].params:
                name = str(option.name)
                is_number = isinstance(
                    option.type, click.types.FloatParamType | click.types.IntParamType
                )
                assert not (words.search(name) and is_number), name
                if option.metavar in ("SPAN", "SIZE"):
                    assert name.startswith("setting_") or isinstance(option.type, Span | Size), name


def test_page_of_operators_names_every_command_and_setting() -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    cells = [set(re.findall(r"[\w-]+", row)) for row in re.findall(r"^\| ([^|]*) \|", page, re.M)]
    for path in LEAVES:
        assert any(set(path.split()) <= cell for cell in cells), path
    for name in SETTING_NAMES:
        (row,) = re.findall(rf"^\| `{name}` \| (.*)", page, re.M)
        assert has_flag(name) is ("no flag" not in row), name


@pytest.fixture(scope="module")
def program_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds `chainctl`, as an installation has it in the path."""
    folder = tmp_path_factory.mktemp("bin")
    program = folder / "chainctl"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m chainctl "$@"\n')
    program.chmod(0o755)
    return folder


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
    words: list[str], found: set[str], program_folder: Path
) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    script = (
        'eval "$(chainctl completion bash)" && complete -p chainctl >/dev/null\n'
        'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _chainctl_completion chainctl\n'
        "printf '%s\\n' \"${COMPREPLY[@]}\"\n"
    )
    done = subprocess.run(
        [bash, "-c", script, "bash", *words],
        env={**os.environ, "PATH": f"{program_folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(done.stdout.split()) == found, done


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_script_of_a_shell_asks_for_what_chainctl_answers(
    shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    assert f"{COMPLETION_VARIABLE}={shell}_complete" in capsys.readouterr().out
    monkeypatch.setenv(COMPLETION_VARIABLE, f"{shell}_complete")
    monkeypatch.setenv("COMP_WORDS", "chainctl sta")
    monkeypatch.setenv("COMP_CWORD", "sta" if shell == "fish" else "1")
    main([])
    answer = capsys.readouterr().out
    assert "stack" in answer
    assert "status" in answer
    assert "sequence" not in answer


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


def test_completion_of_another_shell_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert "'bash', 'zsh', 'fish'" in capsys.readouterr().err
