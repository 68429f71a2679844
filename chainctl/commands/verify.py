"""`chainctl verify`: proves a chain whole with Spark, or names its faults."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chainctl.exits import ExitCode
from chainctl.marking import Beginning, beginning_of, move_mark, who
from chainctl.options import ROW_ID, chain_option, json_option, uses_settings
from chainctl.output import data, talk
from orderchain.errors import SettingError

if TYPE_CHECKING:
    from chain_verifier.config import Source, VerifyRequest
    from chain_verifier.report import Report
    from chainctl.settings import Settings


@click.command()
@chain_option
@click.option(
    "--source", "sources", multiple=True, required=True, metavar="SOURCE",
    help="database, topic, topic:NAME, journal:FILE or parquet:PATH. "
    "Several are also compared with each other.",
)  # fmt: skip
@click.option(
    "--head", type=ROW_ID, metavar="ID",
    help="The id that the chain is known to reach; the database knows its own.",
)  # fmt: skip
@click.option(
    "--start", type=ROW_ID, metavar="ID",
    help="The id before the first row; rows up to it are not looked at. [default: the beginning, "
    "or up to where the database was archived]",
)  # fmt: skip
@click.option(
    "--since-verified", is_flag=True,
    help="Begin behind the last verified row, and move that mark if all is whole.",
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
    "--follow", is_flag=True,
    help="Go on with the topic until Ctrl-C, and tell of each fault as its frame arrives.",
)  # fmt: skip
@click.option(
    "--checkpoint", metavar="FOLDER",
    help="Where --follow keeps how far it is and what it found; the next one goes on from there.",
)  # fmt: skip
@click.option("--master", metavar="URL", help="A Spark master. [default: Spark in this process]")
@click.option(
    "--local", "is_local", is_flag=True,
    help="Check in plain Python, without Java and Spark: the same findings, on one core.",
)  # fmt: skip
@click.option(
    "--report", "page", metavar="FILE.html",
    help="Write the report for people: one page of HTML that needs nothing beside itself.",
)  # fmt: skip
@json_option
@uses_settings("database", "audit_database", "kafka")
def command(
    settings: Settings,
    chain_id: int,
    sources: tuple[str, ...],
    head: int | None,
    start: int | None,
    since_verified: bool,
    actor: str | None,
    seals: bool,
    expect_seal: str | None,
    follow: bool,
    checkpoint: str | None,
    master: str | None,
    is_local: bool,
    page: str | None,
    as_json: bool,
) -> ExitCode:
    """Prove a chain whole, or name its faults.

    Exit code 0 means that every source was read to its end and is one path of rows from the start
    to the head, without a gap, fork, orphan or duplicate, and that all hold the same rows. Where
    no head is known, the verdict says so.
    """
    from chain_verifier.config import VerifyRequest, parse_kept_seal

    if follow:
        from chainctl import following

        following.require_alone(
            {
                "--local": is_local,
                "--seals": seals,
                "--expect-seal": expect_seal is not None,
                "--report": page is not None,
                "--since-verified": since_verified,
                "--head": head is not None,
                "--start": start is not None,
            }
        )
        found = tuple(_source(text, settings) for text in sources)
        following.follow(found, chain_id, checkpoint, master, as_json=as_json)
    if checkpoint is not None:
        raise SettingError("--checkpoint", checkpoint, "--follow, which keeps its place there")
    beginning = Beginning(0, head)
    if since_verified and (start is not None or "database" not in sources):
        raise SettingError("--since-verified", "given", "a source database, and no --start")
    if "database" in sources and start is None:
        beginning = beginning_of(settings, chain_id, head, is_marked=since_verified)
    request = VerifyRequest(
        chain_id=chain_id,
        sources=tuple(_source(text, settings) for text in sources),
        head=beginning.head,
        start=beginning.start if start is None else start,
        seals=seals,
        kept_seal=None if expect_seal is None else parse_kept_seal(expect_seal),
        master=master,
    )
    if page is not None:
        _require_folder(page)
    report = _verified(request, is_local=is_local)
    code = _show(report, as_json=as_json)
    if since_verified:
        talk(move_mark(settings, report, who(actor)))
    if page is not None:
        _write_page(page, report, request)
    return code


def _require_folder(page: str) -> None:
    """Refuse a page that cannot be written before the verification takes its time."""
    if not Path(page).absolute().parent.is_dir():
        raise SettingError("--report", page, "a file in a folder that exists")


def _write_page(page: str, report: Report, request: VerifyRequest) -> None:
    from chain_verifier.html_report import html_report
    from chain_verifier.local.picture import read_picture

    text = html_report(report, read_picture(request), datetime.now(UTC))
    Path(page).write_text(text, encoding="utf-8")


def _source(text: str, settings: Settings) -> Source:
    """Return the source named `text`; the database is read with the auditor's address."""
    from chain_verifier.config import parse_source

    is_topic = text.partition(":")[0] == "topic"
    return parse_source(
        text,
        settings.audit_dsn() if text == "database" else None,
        settings.kafka_servers() if is_topic else None,
    )


def _verified(request: VerifyRequest, *, is_local: bool) -> Report:
    # Spark takes seconds: whoever watches is told what goes on, a log file is not.
    is_watched = sys.stderr is not None and sys.stderr.isatty()
    progress = talk if is_watched else _unwatched
    if is_local and request.checks_seals:
        raise SettingError("--local", "together with seals", "Spark, which recomputes them")
    if is_local:
        from chain_verifier.local.verify import verify_locally

        return verify_locally(request, progress)
    from chain_verifier.verify import verify

    return verify(request, progress=progress)


def _unwatched(line: str) -> None:
    """Tell nobody."""


def _show(report: Report, *, as_json: bool) -> ExitCode:
    if as_json:
        data(report.to_json())
    else:
        for line in report.lines():
            data(line)
    return ExitCode.CLEAN if report.is_clean else ExitCode.FINDINGS
