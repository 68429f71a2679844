"""`chainctl repair`: writes missing rows of a chain back, where the seals prove them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from msgspec.structs import asdict

from chain_kernel.errors import SettingError
from chain_kernel.text import counted
from chainctl.exits import ExitCode
from chainctl.options import Command, acts_by_hand, chain_option, json_option, uses_settings
from chainctl.output import data_json, progress, table, talk

if TYPE_CHECKING:
    from chain_verifier.config import KeptSeal
    from chain_verifier.repair.repair import RepairPlan
    from chainctl.options import ActByHand
    from chainctl.settings import Settings

_COLUMNS: Final = ("what", "after_id", "until_id", "batches", "rows", "why")


@click.command(cls=Command)
@chain_option
@click.option(
    "--source", "source", required=True, metavar="SOURCE",
    help="Where the rows are: topic, topic:NAME, journal:FILE or archive:DIR.",
)  # fmt: skip
@click.option(
    "--expect-seal", "kept", multiple=True, metavar="ID:SEAL",
    help="An exported seal: it proves what the source has up to its batch. May be repeated.",
)  # fmt: skip
@click.option(
    "--expect-seals", "seals_folder", type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR", help="All seals of the chain that `seal export --store DIR` stored do so.",
)  # fmt: skip
@click.option(
    "--seal-public-key", "seal_public_keys", multiple=True, metavar="HEX",
    help="With --expect-seals: the key that must have signed them; may be repeated.",
)  # fmt: skip
@acts_by_hand
@json_option
@uses_settings("database", "kafka", "connect_seconds")
def repair(
    settings: Settings,
    chain_id: int,
    source: str,
    kept: tuple[str, ...],
    seals_folder: Path | None,
    seal_public_keys: tuple[str, ...],
    act: ActByHand,
    as_json: bool,
) -> ExitCode:
    """Write back rows that the database lacks or that were changed there.

    Every batch is compared with its seal. From the source, only batches whose rows give the stored
    seal are taken. After the head, batches are added that a known leader has signed, or that lead
    to an exported seal (--expect-seal, --expect-seals); no leader may be alive then. The plan is
    shown first, then it is done, and recorded. Exit code 1 if something is left that cannot be
    repaired from this source. Needs the owner's rights.
    """
    from chain_verifier.config import parse_kept_seal
    from chain_verifier.repair.offers import parse_repair_source
    from chain_verifier.repair.repair import RepairRequest, repair_chain

    if seal_public_keys and seals_folder is None:
        raise SettingError("--seal-public-key", seal_public_keys[0], "--expect-seals with it")
    kept_seals = tuple(map(parse_kept_seal, kept))
    if seals_folder is not None:
        kept_seals += _seals_in(seals_folder, settings, chain_id, seal_public_keys)
    kafka = settings.kafka_config() if source.partition(":")[0] == "topic" else None
    request = RepairRequest(
        chain_id=chain_id,
        database=settings.database_dsn(),
        source=parse_repair_source(source, kafka, settings.connect_seconds),
        kept_seals=kept_seals,
        actor=act.actor,
        reason=act.reason,
        is_dry_run=act.is_dry_run,
        connect_seconds=settings.connect_seconds,
    )
    with progress("repairing", None) as bar:
        done = repair_chain(
            request,
            show=lambda plan: _show(plan, as_json),
            progress=lambda line: bar.move_to(0, line),
        )
    if as_json:
        data_json({**asdict(done.plan), "act_id": done.act_id})
    elif done.act_id is not None:
        talk(f"chainctl: done, and recorded as act {done.act_id}")
    return ExitCode.FINDINGS if done.plan.left else ExitCode.CLEAN


def _seals_in(
    folder: Path, settings: Settings, chain_id: int, public_keys: tuple[str, ...]
) -> tuple[KeptSeal, ...]:
    """Return the exported seals of a chain, but for those of rows that are archived."""
    from chain_verifier.seal_files import load_all
    from chain_verifier.verified_mark import read_extent

    boundary_id = read_extent(
        settings.database_dsn(), chain_id, settings.connect_seconds
    ).boundary_id
    files = load_all(folder, chain_id, public_keys)
    return tuple(file.kept() for file in files if file.id >= boundary_id)


def _show(plan: RepairPlan, as_json: bool) -> None:
    for note in plan.notes:
        talk(f"chainctl: {plan.source}: {note}")
    if not as_json and (plan.written or plan.left):
        pieces = (*plan.written, *plan.left)
        table(_COLUMNS, [[getattr(each, name) for name in _COLUMNS] for each in pieces])
    what = f"{counted(plan.batches, 'batch')}, {counted(plan.rows, 'row')}"
    head = "" if plan.head == plan.head_after else f"; head {plan.head} -> {plan.head_after}"
    left = counted(len(plan.left), "range")
    talk(
        f"chainctl: chain {plan.chain}: to be written back from {plan.source}: {what}{head}; "
        f"left: {left}"
    )
