"""`chainctl verify`: proves chains whole, or names their faults."""

from __future__ import annotations

import os
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec import Struct

from chain_kernel.errors import OrderchainError, SettingError
from chain_kernel.sql import AUDITOR
from chain_kernel.text import counted
from chain_kernel.version import installed_version
from chainctl.commands.stack import demo_option
from chainctl.commands.verifier.mark import Beginning, beginning_of, extents_of, move_mark
from chainctl.commands.verifier.verify_replay import verify_replay
from chainctl.commands.verifier.verify_table import verify_table
from chainctl.exits import ExitCode, hide_secrets
from chainctl.options import (
    CHAIN_ID,
    ROW_ID,
    CommandGroup,
    json_option,
    master_option,
    uses_settings,
    who,
)
from chainctl.output import (
    command_line,
    data,
    data_text,
    progress,
    talk,
)
from chainctl.units import shown_age

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from chain_verifier.config import KeptSeal, Source, VerifyRequest
    from chain_verifier.report import ChainsReport, Report, Unverified
    from chain_verifier.verified_mark import VerifiedExtent
    from chainctl.settings import Settings


# -- one verification, from its options to its exit code -------------------------------------------

CHAIN_MARK: Final = "{chain}"
"""In the name of a source, it stands for the number of the chain."""


class VerifyOptions(Struct, frozen=True, kw_only=True):
    """The options of one call, as click gives them."""

    chains: tuple[int, ...]
    all_chains: bool
    sources: tuple[str, ...]
    head: int | None
    after_id: int | None
    since_verified: bool
    actor: str | None
    seals: bool
    expect_seal: str | None
    seals_folder: str | None
    seal_public_keys: tuple[str, ...]
    keys: bool
    master: str | None
    is_local: bool
    findings_folder: str | None
    page: str | None
    as_json: bool


def run_verification(settings: Settings, asked: VerifyOptions) -> ExitCode:
    """Verify the requested chains, and report; return the highest of their exit codes.

    The error of a single chain is raised, that of one of several is reported. Raises SettingError
    for options that do not go together.
    """
    _require_fitting(asked)
    chains = _chains_of(settings, asked)
    _require_named_apart(asked, chains)
    if len(chains) == 1 and not asked.all_chains:
        return _verify_one(settings, asked, chains[0])
    return _verify_several(settings, asked, chains)


def _require_fitting(asked: VerifyOptions) -> None:
    """Refuse options that do not go together, before anything is read."""
    from chain_verifier.places import place_of

    if bool(asked.chains) == asked.all_chains:
        given = "both" if asked.chains else None
        raise SettingError("--chain", given, "the chains to verify, or --all-chains")
    for chain_id in asked.chains:
        if asked.chains.count(chain_id) > 1:
            raise SettingError("--chain", chain_id, "each chain once")
    of_spark = {"--master": asked.master, "--findings": asked.findings_folder}
    for option, value in of_spark.items():
        if asked.is_local and value is not None:
            raise SettingError(option, "together with --local", "one of the two")
    is_database = "database" in asked.sources
    if asked.since_verified and (asked.after_id is not None or not is_database):
        raise SettingError("--since-verified", "given", "a source database, and no --after")
    if asked.actor is not None and not asked.since_verified:
        raise SettingError("--actor", asked.actor, "--since-verified, whose mark has it")
    _require_fitting_seals(asked)
    if asked.page is not None:
        page = place_of("--report", asked.page)
        if isinstance(page, Path) and not page.absolute().parent.is_dir():
            raise SettingError("--report", asked.page, "a file in a folder that exists")


def _require_fitting_seals(asked: VerifyOptions) -> None:
    """Refuse seals that nothing would be held against."""
    kept = {"--expect-seal": asked.expect_seal, "--expect-seals": asked.seals_folder}
    for option, value in kept.items():
        if value is not None and "database" not in asked.sources:
            raise SettingError(option, value, "a source database, which it is held against")
    if asked.seal_public_keys and asked.seals_folder is None:
        raise SettingError("--seal-public-key", asked.seal_public_keys[0], "--expect-seals")


def _chains_of(settings: Settings, asked: VerifyOptions) -> Sequence[int]:
    """Return the chains; the database lists all of them."""
    if not asked.all_chains:
        return asked.chains
    from chainctl.database import SQL, connected_to, database_id
    from chainctl.event_loop import run_async

    async def read() -> list[int]:
        async with connected_to(
            settings.audit_dsn(), settings.connect_seconds, AUDITOR
        ) as connection:
            await database_id(connection)
            return [row["chain_id"] for row in await connection.fetch(SQL["chains"])]

    found = run_async(read())
    if not found:
        raise SettingError("--all-chains", "no chain", "a database that holds one")
    return found


def _require_named_apart(asked: VerifyOptions, chains: Sequence[int]) -> None:
    """With several chains, refuse the options that fit only one."""
    if len(chains) == 1:
        return
    of_one = {"--head": asked.head, "--after": asked.after_id, "--expect-seal": asked.expect_seal}
    for option, value in of_one.items():
        if value is not None:
            raise SettingError(option, value, f"one chain, not {len(chains)}")
    for text in asked.sources:
        if ":" in text and CHAIN_MARK not in text:
            raise SettingError(
                "--source", text, f"{CHAIN_MARK} in its name: it is another for each chain"
            )


def _verify_one(settings: Settings, asked: VerifyOptions, chain_id: int) -> ExitCode:
    request = _request_of(settings, asked, chain_id)
    verify_one, _ = _mode_of(asked)
    with _shown_steps() as show:
        report = verify_one(request, progress=show)
    _show(report, asked)
    _move_marks(settings, asked, [report])
    _write_page(settings, asked, report)
    return _code_of(report)


def _verify_several(settings: Settings, asked: VerifyOptions, chains: Sequence[int]) -> ExitCode:
    extents = extents_of(settings, chains) if "database" in asked.sources else {}
    prepared = [_prepared(settings, asked, number, extents.get(number)) for number in chains]
    _, verify_several = _mode_of(asked)
    with _shown_steps() as show:
        report = verify_several(prepared, progress=show)
    _show(report, asked, settings.secrets())
    _move_marks(settings, asked, report.reports)
    _write_page(settings, asked, report)
    return max(map(_code_of, report.outcomes))


def _mode_of(
    asked: VerifyOptions,
) -> tuple[Callable[..., Report], Callable[..., ChainsReport]]:
    """Return the functions that verify one chain, and several: with Spark or without."""
    if asked.is_local:
        from chain_verifier.local.verify import verify_chains_locally, verify_locally

        return verify_locally, verify_chains_locally
    from chain_verifier.spark.verify import verify, verify_chains

    return verify, verify_chains


def _write_page(settings: Settings, asked: VerifyOptions, report: Report | ChainsReport) -> None:
    if asked.page is None:
        return
    from chain_verifier.html import Origin, html_report
    from chain_verifier.places import place_of, write_text

    origin = Origin(
        made_at=datetime.now(UTC),
        command=hide_secrets(command_line(), settings.secrets()),
        version=installed_version(),
    )
    write_text(place_of("--report", asked.page), html_report(report, origin))


def _prepared(
    settings: Settings, asked: VerifyOptions, chain_id: int, extent: VerifiedExtent | None
) -> VerifyRequest | Unverified:
    """Return the request for one of several chains; one that fails does not stop others."""
    from chain_verifier.report import unverified_by

    sources = _sources_of(settings, asked, chain_id)
    try:
        return _request_of(settings, asked, chain_id, sources, extent)
    except OrderchainError as error:
        return unverified_by(error, chain_id)


def _request_of(
    settings: Settings,
    asked: VerifyOptions,
    chain_id: int,
    sources: tuple[Source, ...] | None = None,
    extent: VerifiedExtent | None = None,
) -> VerifyRequest:
    from chain_verifier.config import VerifyRequest

    sources = _sources_of(settings, asked, chain_id) if sources is None else sources
    beginning = Beginning(asked.after_id or 0, asked.head)
    if "database" in asked.sources:
        beginning = beginning_of(
            settings, chain_id, asked.after_id, asked.head, is_marked=asked.since_verified,
            extent=extent,
        )  # fmt: skip
    return VerifyRequest(
        chain_id=chain_id,
        sources=sources,
        head=beginning.head,
        start=beginning.start,
        seals=asked.seals,
        kept_seals=_kept_seals(settings, asked, chain_id),
        contradicted_mark=beginning.contradicted,
        master=asked.master,
        findings_folder=asked.findings_folder,
        key_window_rows=settings.key_window_rows if asked.keys else None,
    )


def _kept_seals(settings: Settings, asked: VerifyOptions, chain_id: int) -> tuple[KeptSeal, ...]:
    """Return the exported seals that the database must still have.

    Those of archived rows are left out: `archive --check` proves them.
    """
    from chain_verifier.config import parse_kept_seal
    from chain_verifier.seal_files import export_age_seconds, load_all
    from chain_verifier.verified_mark import read_extent

    kept = () if asked.expect_seal is None else (parse_kept_seal(asked.expect_seal),)
    if asked.seals_folder is None:
        return kept
    files = load_all(Path(asked.seals_folder), chain_id, asked.seal_public_keys)
    extent = read_extent(settings.audit_dsn(), chain_id, settings.connect_seconds)
    held = tuple(file.kept() for file in files if file.id >= extent.boundary_id)
    last = files[-1]
    talk(
        f"chainctl: chain {chain_id}: {counted(len(held), 'exported seal')} held against the "
        f"database, {len(files) - len(held)} of archived rows; the last one is of row {last.id}, "
        f"exported {shown_age(export_age_seconds(last))} ago"
        + ("" if asked.seal_public_keys else "; --seal-public-key would check who signed them")
    )
    return kept + held


def _sources_of(settings: Settings, asked: VerifyOptions, chain_id: int) -> tuple[Source, ...]:
    """Return the sources of a chain; the database is read with the auditor's address."""
    from chain_verifier.config import parse_source

    return tuple(
        parse_source(
            text.replace(CHAIN_MARK, str(chain_id)),
            settings.audit_dsn() if text == "database" else None,
            settings.kafka_config() if text.partition(":")[0] == "topic" else None,
            settings.connect_seconds,
        )
        for text in asked.sources
    )


@contextmanager
def _shown_steps() -> Iterator[Callable[[str], None]]:
    """Show the step under way: Spark takes seconds to start, and as long as it needs."""
    # spark-submit writes stderr to its stdout, where the report is.
    is_awaited = "PYSPARK_GATEWAY_PORT" not in os.environ
    with progress("verifying", None, is_awaited=is_awaited) as bar:
        yield lambda line: bar.move_to(0, line)


def _show(
    report: Report | ChainsReport, asked: VerifyOptions, secrets: tuple[str, ...] = ()
) -> None:
    # With several chains, the report also holds the texts of errors.
    if asked.as_json:
        data_text(hide_secrets(report.to_json(), secrets))
        return
    for line in report.lines():
        data(hide_secrets(line, secrets))


def _move_marks(settings: Settings, asked: VerifyOptions, reports: Sequence[Report]) -> None:
    if asked.since_verified:
        for report in reports:
            talk(move_mark(settings, report, who(asked.actor)))


def _code_of(outcome: Report | Unverified) -> ExitCode:
    from chain_verifier.report import Report, Verdict

    if isinstance(outcome, Report):
        if outcome.verdict is Verdict.UNPROVEN:
            return ExitCode.FAILED
        return ExitCode.CLEAN if outcome.is_clean else ExitCode.FINDINGS
    return ExitCode.REFUSED if outcome.is_refused else ExitCode.FAILED


# -- the command -----------------------------------------------------------------------------------


@click.group(cls=CommandGroup, invoke_without_command=True)
@click.option(
    "--chain", "chains", type=CHAIN_ID, multiple=True, metavar="N",
    help="The chain. May be repeated: all are verified in one run.",
)  # fmt: skip
@click.option("--all-chains", is_flag=True, help="Every chain of the database, instead of --chain.")
@click.option(
    "--source", "sources", multiple=True, metavar="SOURCE",
    help="database, topic, topic:NAME, journal:FILE or parquet:PATH; {chain} in a name stands for "
    "the chain's number. Several are also compared with each other.",
)  # fmt: skip
@click.option(
    "--head", type=ROW_ID, metavar="ID",
    help="The id that the chain is known to reach; the database knows its own.",
)  # fmt: skip
@click.option(
    "--after", "after_id", type=ROW_ID, metavar="ID",
    help="Skip rows up to this id.  [default: the beginning, or where the database was archived]",
)  # fmt: skip
@click.option(
    "--since-verified", is_flag=True,
    help="Begin after the last verified row, and move that mark if all is whole.",
)  # fmt: skip
@click.option("--actor", metavar="TEXT", help="Who verifies, for the mark.  [default: user@host]")
@click.option(
    "--seals", is_flag=True,
    help="Recompute every seal of the database too, which reads every column of every row.",
)  # fmt: skip
@click.option(
    "--expect-seal", metavar="ID:SEAL",
    help="A seal that `seal export` printed: recompute, and hold the database against it.",
)  # fmt: skip
@click.option(
    "--expect-seals", "seals_folder", metavar="DIR",
    help="Expect all seals of the chain that `seal export --store DIR` stored.",
)  # fmt: skip
@click.option(
    "--seal-public-key", "seal_public_keys", multiple=True, metavar="HEX",
    help="With --expect-seals: the key that must have signed them; may be repeated.",
)  # fmt: skip
@click.option(
    "--keys", is_flag=True,
    help="Look for two rows under one key too, in the first source, the database before others: a "
    "pass of its own that sorts all keys, some three times the time of the check.",
)  # fmt: skip
@master_option
@click.option(
    "--local", "is_local", is_flag=True,
    help="Check in plain Python, without Java and Spark, on one core: the same answer, but only "
    "the first fault of each kind is named.",
)  # fmt: skip
@click.option(
    "--findings", "findings_folder", metavar="DIR",
    help="Write all findings there, as Parquet and JSON; what is printed is a sample. Not with "
    "--local.",
)  # fmt: skip
@click.option(
    "--report", "page", metavar="FILE.html",
    help="Write the report for people: one page of HTML that needs nothing beside itself.",
)  # fmt: skip
@demo_option
@json_option
@uses_settings("database", "audit_database", "kafka", "connect_seconds", "key_window_rows")
def verify(settings: Settings, **options: Any) -> ExitCode:  # noqa: ANN401 - click's own
    """Prove chains whole, or name their faults.

    Exit code 0 means that every source was read to its end and is one path of rows from the start
    to the head, without a gap, fork, orphan or duplicate, and that all hold the same rows. Where
    no head is known, the verdict says so. With several chains, the highest exit
    code is returned.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return ExitCode.CLEAN
    if not options["sources"]:
        raise click.UsageError("Missing option '--source'.")
    return run_verification(settings, VerifyOptions(**options))


verify.add_command(verify_table)
verify.add_command(verify_replay)
