"""`chainctl seal`: seals leave the database, to be kept out of everyone's reach."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import click
from msgspec import Raw, Struct

from chain_kernel.errors import ChainMissing, ConnectError, RetryError, SettingError
from chain_kernel.monitoring import Metric
from chainctl.database import SQL, looking, utc
from chainctl.event_loop import run_async
from chainctl.monitor_server import Address, http_option, watched_beside
from chainctl.options import CHAIN_ID, Group, json_option, user_and_host, uses_settings
from chainctl.output import data, data_json, data_json_line, table, talk
from chainctl.units import Span

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chain_kernel.monitoring import Sample
    from chain_verifier.seal_files import SealFile
    from chainctl.settings import Settings

_log = logging.getLogger(__name__)

_UPLOAD_SECONDS: Final = 30.0


class SealLine(Struct, frozen=True, kw_only=True):
    """A seal, and what it is the seal of."""

    chain_id: int
    id: int
    """The last row that it covers: the head of the chain; 0 for an empty one."""
    seal: str
    """64 hexadecimal digits."""
    committed_at: str
    """The time of that row's commit, by the sequencer's clock, in UTC."""
    database_id: str


class _Stored(Struct, frozen=True):
    id: int
    monotonic_seconds: float


METRICS: Final = (
    Metric[_Stored](
        "orderchain_seal_exported_id", "gauge", "The last row that the last stored seal covers.",
        lambda stored: stored.id,
    ),
    Metric[_Stored](
        "orderchain_seal_export_age_seconds", "gauge",
        "Seconds since a seal of the chain was last stored.",
        lambda stored: time.monotonic() - stored.monotonic_seconds,
    ),
)  # fmt: skip
"""The metrics of `seal export --every`, with the label `chain`."""


class _Exports:
    """The seals stored so far, for the monitor; it is read from another thread."""

    def __init__(self, every_seconds: float) -> None:
        self._every_seconds = every_seconds
        self._stored: dict[int, _Stored] = {}
        self._ended = time.monotonic()
        """The time of the last whole round, or of the begin."""

    def add(self, seal: SealLine) -> None:
        self._stored[seal.chain_id] = _Stored(seal.id, time.monotonic())

    def end_round(self) -> None:
        self._ended = time.monotonic()

    def samples(self) -> Iterator[Sample]:
        for chain_id, stored in sorted(self._stored.copy().items()):
            for metric in METRICS:
                yield from metric.samples(stored, {"chain": str(chain_id)})

    def why_not_ready(self) -> str | None:
        """Return that a round of seals is missing, which also covers the time that one takes."""
        seconds = time.monotonic() - self._ended
        if seconds <= 2 * self._every_seconds:
            return None
        return f"no seals were stored for {seconds:.0f} s"


@click.group(cls=Group)
def seal() -> None:
    """Take seals out of the database."""


@seal.command(short_help="Print or store the seal at the head of a chain.")
@click.option("--chain", "chains", type=CHAIN_ID, multiple=True, metavar="N",
              help="The chain; may be repeated.  [default: all, with --store]")  # fmt: skip
@click.option("--store", "place", metavar="DIR|URL",
              help="Store a file per seal in a folder, or PUT it below a URL.")  # fmt: skip
@click.option("--sign", "key_file", metavar="FILE",
              type=click.Path(path_type=Path, dir_okay=False),
              help="Sign it with the key that `seal key` made.")  # fmt: skip
@click.option("--every", "every_seconds", type=Span(), metavar="SPAN",
              help="Store another one after each SPAN (1h), until stopped.")  # fmt: skip
@http_option
@json_option
@uses_settings("database", "audit_database", "connect_seconds", "log_format")
def export(
    settings: Settings,
    chains: tuple[int, ...],
    place: str | None,
    key_file: Path | None,
    every_seconds: float | None,
    http: Address | None,
    as_json: bool,
) -> None:
    """Export the seal at the head of a chain: print ID:SEAL and the time of the commit, or store it
    as a file elsewhere.

    Kept on paper or in another system, `verify --expect-seal ID:SEAL` or `--expect-seals DIR` shows
    with it that nothing up to there was changed since, even if every later seal was written again.
    """
    if http is not None and every_seconds is None:
        raise click.UsageError("--http needs --every: without it the command ends at once")
    if place is None:
        _print_seal(settings, chains, key_file, every_seconds, as_json=as_json)
        return
    from chain_verifier.seal_files import read_signing_key

    if _is_url(place):
        from outbox.http_call import check_url

        check_url("--store", place)
    key = None if key_file is None else read_signing_key(key_file)
    exports = _Exports(every_seconds or 0)
    with watched_beside(http) as watch:
        watch.add(exports)
        while True:
            try:
                for seal in run_async(_seals(settings, chains)):
                    _store(place, seal, key, as_json=as_json)
                    exports.add(seal)
                exports.end_round()
            except (RetryError, ConnectError) as error:
                if every_seconds is None:
                    raise
                _log.warning("%s; trying again after %g s", error, every_seconds)
            if every_seconds is None:
                return
            time.sleep(every_seconds)


def _print_seal(
    settings: Settings,
    chains: tuple[int, ...],
    key_file: Path | None,
    every_seconds: float | None,
    *,
    as_json: bool,
) -> None:
    for option, value in (("--sign", key_file), ("--every", every_seconds)):
        if value is not None:
            raise click.UsageError(f"{option} needs --store: it is about stored seals")
    if len(chains) != 1:
        raise click.UsageError("say which chain: --chain N, or where to store all: --store DIR")
    (line,) = run_async(_seals(settings, chains))
    if as_json:
        data_json(line)
        return
    data(f"{line.id}:{line.seal} {line.committed_at}")


@seal.command()
@click.argument("key_file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE")
def key(key_file: Path) -> None:
    """Make a key to sign seals with (Ed25519), and print its public key.

    Keep the file on the machine that exports; give the public key to those who verify.
    """
    from chain_verifier.seal_files import new_key

    data(new_key(key_file))


@seal.command()
@click.argument(
    "paths", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="FILE|DIR...",
)  # fmt: skip
@click.option("--public-key", "public_keys", multiple=True, metavar="HEX",
              help="The key that must have signed them; may be repeated.")  # fmt: skip
@json_option
def show(paths: tuple[Path, ...], public_keys: tuple[str, ...], as_json: bool) -> None:
    """Check the signatures of stored seals, of files or all of a folder, and show them as sheets to
    print and sign.
    """
    from chain_verifier.seal_files import load, stored

    seals = [
        load(file, public_keys)
        for path in paths
        for file in (stored(path) if path.is_dir() else [path])
    ]
    if as_json:
        data_json(seals)
    else:
        for seal in seals:
            _write_sheet(seal)
    if not public_keys:
        talk("chainctl: whose keys these are was not checked; --public-key would do that")


def _write_sheet(seal: SealFile) -> None:
    rows = [
        ("chain", str(seal.chain_id)),
        ("last row", f"{seal.id:,}"),
        ("committed", seal.committed_at),
        ("seal", " ".join(seal.seal[at : at + 8] for at in range(0, 64, 8))),
        ("database", seal.database_id),
        ("exported", f"{seal.exported_at} by {seal.exported_by}"),
        ("signed with", seal.public_key or "not signed"),
    ]
    table(("what", "value"), rows)
    data("")
    data(f"check with: chainctl verify --chain {seal.chain_id} --source database "
         f"--expect-seal {seal.id}:{seal.seal}")  # fmt: skip
    data("")
    data("place, date: ______________________  name, signature: ______________________")
    data("")


async def _seals(settings: Settings, chains: tuple[int, ...]) -> list[SealLine]:
    lines = []
    async with looking(settings, None, database=settings.audit_dsn()) as connection:
        its_id = await connection.fetchrow(SQL["schema_version"])
        known = [row["chain_id"] for row in await connection.fetch(SQL["chains"])]
        for chain_id in chains or known:
            if chain_id not in known:
                raise ChainMissing(chain_id)
            row = await connection.fetchrow(SQL["head_seal"], chain_id)
            lines.append(
                SealLine(
                    chain_id=chain_id,
                    id=row["last_id"],
                    seal=row["seal"].hex(),
                    committed_at=utc(row["committed_at"]),
                    database_id=str(its_id["database_id"]),
                )
            )
    if not lines:
        raise SettingError("--chain", "no chain", "a database that holds one")
    return lines


def _is_url(place: str) -> bool:
    return urlsplit(place).scheme in {"http", "https"}


def _store(
    place: str,
    line: SealLine,
    key: Any,  # noqa: ANN401 - an Ed25519PrivateKey or None
    *,
    as_json: bool,
) -> None:
    """Store a seal as a file, in a folder or below a URL. `key` signs it."""
    from chain_verifier.seal_files import VERSION, SealFile, signed, store

    seal = SealFile(
        version=VERSION,
        chain_id=line.chain_id,
        id=line.id,
        seal=line.seal,
        committed_at=line.committed_at,
        database_id=line.database_id,
        exported_at=utc(datetime.now(UTC)),
        exported_by=user_and_host(),
    )
    if key is not None:
        seal = signed(seal, key)
    stored = run_async(_put(place, seal)) if _is_url(place) else str(store(Path(place), seal))
    talk(f"chainctl: seal of chain {seal.chain_id} at {seal.id} stored as {stored}")
    if as_json:
        data_json_line(seal)


async def _put(url: str, seal: SealFile) -> str:
    """PUT the seal's file below `url`. Raises RetryError, SettingError."""
    from chain_verifier.seal_files import encoded
    from outbox.http_call import CallRefused, call_json, proxy_of

    target, content = f"{url.rstrip('/')}/{seal.name}", Raw(encoded(seal))
    try:
        await call_json("PUT", target, "", content, _UPLOAD_SECONDS, proxy_of(target))
    except CallRefused as error:
        expected = f"a place that takes files (status {error.status})"
        raise SettingError("--store", url, expected) from error
    return target
