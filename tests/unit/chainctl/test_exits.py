import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

import click
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from chain_kernel import errors
from chain_kernel.text import not_installed
from chainctl.exits import (
    MESSAGE_CHARACTERS_MAX,
    ExitCode,
    Terminated,
    error_line,
    exit_code,
    traceback_text,
    under_way,
)
from chainctl.main import main
from local_stack import errors as stack_errors


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.SettingError("kafka", "x", "y"), ExitCode.REFUSED),
        (errors.ChainMissing(3), ExitCode.REFUSED),
        (errors.KeyConflict("k", 1), ExitCode.REFUSED),
        (errors.Fenced(1, 2), ExitCode.FAILED),
        (errors.RowsMissing(1, 2, 3), ExitCode.FAILED),
        (errors.ForkFound(1, 2, 3, None), ExitCode.FAILED),
        (errors.UnknownOutcome(1, 2, 3, 4), ExitCode.FAILED),
        (errors.RetryError("later"), ExitCode.FAILED),
        (stack_errors.StackMissing("no stack"), ExitCode.REFUSED),
        (stack_errors.FetchFailed("no network"), ExitCode.FAILED),
        (ModuleNotFoundError("No module named 'pyspark'", name="pyspark.sql"), ExitCode.REFUSED),
        (OSError(errno.ENOSPC, "No space left on device", "/x"), ExitCode.FAILED),
        (TimeoutError(), ExitCode.FAILED),
        (MemoryError(), ExitCode.FAILED),
        (ZeroDivisionError("x"), ExitCode.FAILED),
        (Py4JError("x"), ExitCode.FAILED),
        (PySparkException("x"), ExitCode.FAILED),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED),
        (Terminated(), ExitCode.TERMINATED),
        (ExceptionGroup("g", [errors.ChainMissing(3), ValueError()]), ExitCode.REFUSED),
    ],
)
def test_exit_code_of_an_error_says_what_to_do_next(error: BaseException, code: ExitCode) -> None:
    assert exit_code(error) is code
    assert "\n" not in error_line(error)


@pytest.mark.parametrize(
    "error",
    [errors.DurabilityError("fsync", "off", "on"), errors.ClockError("clock", "9 years", "less")],
)
async def test_what_keeps_a_service_from_starting_is_a_failure_once_it_has_started(
    error: errors.RefusedError,
) -> None:
    @asynccontextmanager
    async def service(*, fails_at: str) -> AsyncIterator[None]:
        if fails_at == "start":
            raise error
        yield
        raise error

    codes = {}
    for fails_at in ("start", "end"):
        with pytest.raises(errors.OrderchainError) as caught:
            async with under_way(service(fails_at=fails_at)):
                pass
        assert error_line(caught.value) == str(error)
        codes[fails_at] = exit_code(caught.value)
    assert codes == {"start": ExitCode.REFUSED, "end": ExitCode.FAILED}


async def test_order_that_a_service_refuses_later_is_a_refusal_all_the_same() -> None:
    with pytest.raises(errors.InputError) as caught:
        async with under_way(nullcontext()):
            raise errors.InputError("price", "x", "a number", 7)
    assert exit_code(caught.value) is ExitCode.REFUSED


def test_error_line_with_line_ends_and_control_characters_is_one_plain_line() -> None:
    line = error_line(errors.RetryError("one\ntwo\x1b[31m\tthree\0"))
    assert line == "one\\ntwo\\x1b[31m\\tthree\\x00"
    line = error_line(ValueError("one\ntwo\x1b[31m\tthree\0"))
    assert line.startswith("internal error: ValueError: one two\\x1b[31m three\\x00 (")


def test_error_line_with_a_secret_hides_it() -> None:
    error = errors.RetryError("cannot reach postgresql://u:hidden@h/d nor use swordfish")
    assert error_line(error, ("swordfish",)) == ("cannot reach postgresql://u:***@h/d nor use ***")
    assert "swordfish" not in traceback_text(error, ("swordfish",))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("database was 'x', expected a server that answers", None),
        ("postgresql://u:a@h/d: a failure", "postgresql://u:***@h/d: a failure"),
        ("host=h password=a dbname=a", "host=h password=*** dbname=a"),
        ("?sslpassword=a&sslkey=a", "?sslpassword=***&sslkey=a"),
        ("{'sasl_password': 'a', 'user': 'a'}", "{'sasl_password': '***', 'user': 'a'}"),
        ('{"password":"a","rows":1}', '{"password":"***","rows":1}'),
        ("wrong user or password: a broker said so", None),
        ("password=all of it", None),
    ],
)
def test_short_secret_is_hidden_where_a_password_stands_and_garbles_nothing_else(
    text: str, line: str | None
) -> None:
    assert error_line(errors.RetryError(text), ("a",)) == (line or text)


def test_error_line_is_short_names_what_it_can_and_ends_with_notes() -> None:
    missing = ModuleNotFoundError("No module named 'pyspark'", name="pyspark.sql")
    noted = errors.RetryError("later")
    noted.add_note("rows written before that: 7")
    full = OSError(errno.ENOSPC, "No space left on device", "/data/j.jsonl")
    assert len(error_line(errors.RetryError("x" * 100_000))) == MESSAGE_CHARACTERS_MAX
    assert error_line(missing) == not_installed("pyspark", "spark")
    assert error_line(noted) == "later; rows written before that: 7"
    assert error_line(full) == "/data/j.jsonl: No space left on device"
    halted = error_line(errors.ForkFound(1, 5, 6, 7))
    assert halted.startswith("halted: chain 1: fork after 5")
    assert halted.endswith('(docs/runbooks/halted-receiver.md, "What to do")')


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["sequnce"], "chainctl: No such command 'sequnce'. Did you mean 'sequence'?"),
        (["staus"], "chainctl: No such command 'staus'. Did you mean 'status'?"),
        (["xyzzy"], "chainctl: No such command 'xyzzy'.\n"),
        (["chain", "crate"], "chainctl: No such command 'crate'. Did you mean 'create'? (see"),
        (["outbox", "dead", "lst"], "chainctl: No such command 'lst'. Did you mean 'list'? (see"),
        (["chain", "list", "--databse", "x"], "chainctl: No such option '--databse'"),
        (["status", "--chain", "1", "-x"], "chainctl: No such option '-x'"),
        (["--nothing"], "chainctl: No such option '--nothing'"),
        (["chain", "create"], "chainctl: Missing argument 'N'"),
        (["tail"], "chainctl: Missing option '--chain'"),
        (["status", "--chain", "0"], "chainctl: Invalid value for '--chain': 0 is not in"),
        (["status", "--chain", "2147483648"], "chainctl: Invalid value for '--chain'"),
        (["status", "--chain", "one"], "chainctl: Invalid value for '--chain': 'one'"),
        (["status", "--chain", "1", "2"], "chainctl: Got unexpected extra argument (2)"),
        (
            ["status", "--chain", "1", "postgresql://u:swordfish@h/d"],
            "chainctl: Got unexpected extra argument (postgresql://u:***@h/d)",
        ),
        (
            ["doctor", "host=h password='a b' dbname=d"],
            "chainctl: Got unexpected extra argument (host=h password='***' dbname=d)",
        ),
        (
            ["status", "--chain", "postgresql:///d?password=swordfish&user=u"],
            "chainctl: Invalid value for '--chain': '***' is not a valid integer",
        ),
        (
            ["receive", "--chain", "1", "--output", "x", "--until-idle", "nan"],
            "chainctl: Invalid value for '--until-idle': 'nan', expected a time span",
        ),
        (
            ["receive", "--chain", "1", "--output", "x", "--follow", "--until", "4"],
            "chainctl: --follow goes on",
        ),
    ],
)
def test_command_line_with_a_wrong_use_is_refused_in_one_line(
    arguments: list[str], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == ExitCode.REFUSED
    out, err = capsys.readouterr()
    assert err.startswith(shown)
    assert err.count("\n") == 1
    assert out == ""


def test_command_line_without_a_command_shows_the_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == ExitCode.REFUSED
    assert "Set up and run:" in capsys.readouterr().err


def test_command_line_with_help_or_version_ends_clean(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == ExitCode.CLEAN
    assert main(["chain", "create", "-h"]) == ExitCode.CLEAN
    assert main(["--version"]) == ExitCode.CLEAN
    assert "chainctl " in capsys.readouterr().out


def test_main_with_an_unforeseen_error_ends_in_one_line_and_exit_code_three(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: click.Context) -> None:
        raise ZeroDivisionError("of all things")

    monkeypatch.setattr("chainctl.main.cli.invoke", fail)
    assert main(["config", "show"]) == ExitCode.FAILED
    err = capsys.readouterr().err
    assert err.startswith("chainctl: internal error: ZeroDivisionError: of all things")
    assert err.count("\n") == 1


def test_traceback_is_shown_with_debug_alone_and_foreign_text_in_it_is_escaped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError("of all\x1b[2J\u202e things")

    monkeypatch.setattr("chainctl.commands.config.unknown_variables", fail)
    assert main(["config", "show", "--log-level", "debug"]) == ExitCode.FAILED
    assert main(["xyz\x1b[2J\u202e"]) == ExitCode.REFUSED
    err = capsys.readouterr().err
    assert ("Traceback" in err, "xyz\\x1b[2J\\u202e" in err) == (True, True)
    assert all(line.isprintable() for line in err.splitlines())
    assert main(["config", "show"]) == ExitCode.FAILED
    assert "Traceback" not in capsys.readouterr().err
