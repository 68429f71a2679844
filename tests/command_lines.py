"""Calls of `chainctl` in documents, units and manifests, and whether it takes them."""

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Final

import click

from chainctl.main import cli

_ENDS: Final = {"|", "||", "&&", ";", ">", ">>", "2>", "<", ")"}


def commands_of(
    command: click.Command, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, click.Command]]:
    """Yield the words of each command of a group, and the command."""
    if not isinstance(command, click.Group) or command.invoke_without_command:
        yield " ".join(path), command
    if not isinstance(command, click.Group):
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from commands_of(found, (*path, name))


def refusal_of(words: Sequence[str]) -> str | None:
    """Return why `chainctl` refuses these arguments, None where it takes them.

    Nothing is run: options are read, converted and checked as a call would do it.
    """
    command: click.Command | None = cli
    # A command keeps its help option as its first context names it.
    context = click.Context(cli, info_name="chainctl", **cli.context_settings)
    rest = list(words)
    try:
        while isinstance(command, click.Group) and rest and rest[0] not in ("-h", "--help"):
            if command.invoke_without_command and rest[0].startswith("-"):
                break
            name = rest.pop(0)
            command = command.get_command(context, name)
            if command is None:
                return f"there is no command {name!r}"
            context = click.Context(command, parent=context, info_name=name)
        if rest in (["-h"], ["--help"], ["--version"]):
            return None
        if isinstance(command, click.Group) and not command.invoke_without_command:
            return "a group of commands, without one of them"
        assert command is not None
        command.make_context(context.info_name, rest, parent=context.parent)
    except click.ClickException as error:
        return error.format_message()
    return None


def command_lines(text: str) -> Iterator[list[str]]:
    """Yield the arguments of each call of `chainctl` in lines for a shell."""
    for line in text.replace("\\\n", " ").splitlines():
        for call in re.findall(r"(?:^|[\s(/])chainctl ([^\n]*)", line.partition(" #")[0]):
            lexer = shlex.shlex(call, posix=True, punctuation_chars=True)
            lexer.whitespace_split = True
            words: list[str] = []
            for word in lexer:
                if word in _ENDS:
                    break
                words.append(word)
            yield words


def blocks(page: str) -> Iterator[str]:
    """Yield the shell blocks of a page: those of another language are left out."""
    for match in re.finditer(r"^```(?:sh)?\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        yield match[1]
