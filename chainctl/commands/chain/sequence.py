"""`chainctl sequence`: a file's rows, or a topic's records, go into a chain."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec.structs import asdict, replace

from chain_kernel.errors import SettingError
from chain_kernel.start_at import StartAt
from chain_kernel.text import counted
from chainctl.event_loop import run_async
from chainctl.exits import under_way
from chainctl.monitor_server import http_option
from chainctl.options import (
    CHAIN_ID,
    CHAINS_MAX,
    ChainIds,
    Command,
    Start,
    json_option,
    uses_settings,
)
from chainctl.output import data_json, progress, rate, talk
from chainctl.settings import checked_dsn, named_as_settings, owner_of
from chainctl.topics import check_topic_name
from chainctl.units import Integer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chainctl.commands.chain.intake import ManyTopicsRun, TopicIntakeRun
    from chainctl.monitor_server import Address
    from chainctl.settings import Settings
    from sequencer import FileIntake, SequencerConfig
    from sequencer.intake.file_intake import FileIntakeStats


_COMMIT_SECONDS: Final = 4.0
_COMMIT_PART_OF_LEASE: Final = 0.8
"""Deadline of a commit, and its bound as a share of the lease: it ends before a standby leads."""

_CHAIN: Final = "{chain}"
"""The chain's number in the name of a topic."""

SEQUENCER_FIELDS: Final = {
    "batch_rows": "batch_rows_max",
    "batch_bytes": "batch_bytes_max",
    "queue_bytes": "queue_bytes_max",
    "frame_bytes": "frame_bytes_max",
    "linger_seconds": "linger_seconds",
    "key_window_rows": "key_window_rows",
    "lease_seconds": "lease_seconds",
    "id_strategy": "id_strategy",
    "heartbeat_seconds": "heartbeat_seconds",
    "kafka_at_start": "kafka_at_start",
    "when_kafka_is_away": "when_kafka_is_away",
    "kafka_away_seconds": "kafka_away_seconds",
    "recover_seconds": "recover_seconds",
    "stop_seconds": "stop_seconds",
    "connect_seconds": "connect_seconds",
}
"""The settings that go to a sequencer as they are, and their names in its config or tuning."""


@click.command(cls=Command)
@click.option("--chain", "chain_id", type=CHAIN_ID, metavar="N", help="The chain.")
@click.option(
    "--chains", "chain_ids", type=ChainIds(), metavar="N-N[,N]",
    help="Many chains in one process, such as 1-50,60, each from a topic of its own: "
    "--intake-topic 'orders.{chain}'. They share connections to the database.",
)  # fmt: skip
@click.option(
    "--connections", type=Integer(1, CHAINS_MAX), metavar="COUNT",
    help="With --chains: connections for commits; two more are for the rest.  [default: 12]",
)  # fmt: skip
@click.option(
    "--input", "path", metavar="FILE", type=click.Path(path_type=Path),
    help="CSV or JSON Lines, plain or .gz, .xz, .zst; - for standard input.",
)  # fmt: skip
@click.option(
    "--input-name", metavar="NAME",
    help="Name by which it is known again; what --input - reads is read as a file of that name "
    "is.  [default: the file's, in its folder]",
)  # fmt: skip
@click.option(
    "--key-column", metavar="COLUMN",
    help="Column with the client's unique key.  [default: the key is FILE#ROW]",
)  # fmt: skip
@click.option(
    "--time-column", metavar="COLUMN",
    help="Column with the event's time since 1970, an integer.  [default: when it was sequenced]",
)  # fmt: skip
@click.option(
    "--time-unit", type=click.Choice(["s", "ms", "us", "ns"]),
    help="Unit of the time column.  [default: as the last word of its name says (ts_ms, "
    "eventMillis), else ns]",
)  # fmt: skip
@click.option(
    "--columns", metavar="NAMES",
    help="Names of the columns of a CSV file without a header, with commas between them.",
)  # fmt: skip
@click.option(
    "--delimiter", metavar="CHARACTER",
    help="What separates the fields of a CSV file, such as ';' or '\\t'.  [default: as its first "
    "line says (sep=;), else a comma]",
)  # fmt: skip
@click.option(
    "--header-again", type=click.Choice(["refuse", "skip"]),
    help="What to do with a line that is the header again, as in CSV files that were joined.  "
    "[default: refuse]",
)  # fmt: skip
@click.option(
    "--format", type=click.Choice(["csv", "jsonl"]),
    help="What the file is.  [default: by its name]",
)  # fmt: skip
@click.option(
    "--intake-topic", metavar="TOPIC",
    help="Kafka topic to take orders from until interrupted, instead of a file. A record's key "
    "is the client's unique key, its value the order.  [default key: TOPIC/PARTITION#OFFSET]",
)  # fmt: skip
@click.option(
    "--start-at", type=Start(), metavar="beginning|end|TIME",
    help="Where to begin in a topic that was never read before.  [default: beginning]",
)  # fmt: skip
@click.option(
    "--standby", is_flag=True,
    help="Wait while another process leads the chain, and take over once it is gone.",
)  # fmt: skip
@click.option(
    "--unsafe-durability", is_flag=True,
    help="Start on a database that may lose what it has acknowledged. For throw-away data only.",
)  # fmt: skip
@http_option
@json_option
@uses_settings("database", "kafka", "owner", *SEQUENCER_FIELDS, "log_format")
def sequence(
    settings: Settings,
    chain_id: int | None,
    chain_ids: tuple[int, ...] | None,
    connections: int | None,
    path: Path | None,
    input_name: str | None,
    intake_topic: str | None,
    start_at: StartAt | None,
    standby: bool,
    unsafe_durability: bool,
    http: Address | None,
    as_json: bool,
    **file: Any,  # noqa: ANN401 - click's own
) -> None:
    """Put the rows of a file, or the records of a topic, into a chain, in their order.

    From a file: every value is text; a row becomes a MessagePack map in the order of the columns.
    The same file again goes on where it ended and adds nothing twice; a file of another name is new
    orders. One of the same name in another folder is refused, unless --input-name says which.

    A row that cannot be read ends it with exit code 2: the rows before it are in the chain, none
    after it. Fix the row and run it again.

    From a topic: each record is taken once, whatever is killed in between, and a record that is no
    order is stored as a reject. It runs until interrupted, or until another process leads.

    With --chains, what ends one chain ends no other. With --standby, it is waited for again: so
    `step-down` hands single chains over to another process, and back.
    """
    is_standard_input = path == Path("-")
    if (chain_id is None) is (chain_ids is None):
        raise click.UsageError("say which chain: either --chain N, or --chains N-N")
    topics: list[str] = []
    if intake_topic is not None:
        _refuse_beside("--intake-topic", {"input": path, "input_name": input_name, **file})
        topics = _topics(intake_topic, chain_ids)
    elif path is None:
        raise click.UsageError("say where the orders are: --input FILE, or --intake-topic TOPIC")
    else:
        _refuse_beside("--input", {"start_at": start_at, "http": http})
        if file["time_unit"] is not None and file["time_column"] is None:
            raise click.UsageError("--time-unit needs --time-column")
        if is_standard_input and input_name is None:
            raise click.UsageError(
                "--input - needs --input-name NAME: by the name it is known what was taken before"
            )
    if chain_ids is None:
        _refuse_beside("--chain", {"connections": connections})
    else:
        _refuse_beside("--chains", {"input": path})
    configs = [
        sequencer_config(settings, number, unsafe_durability=unsafe_durability, standby=standby)
        for number in chain_ids or [chain_id or 0]
    ]
    if intake_topic is not None:
        from chainctl.commands.chain.intake import ManyTopicsRun, TopicIntakeRun, topic_config

        chains = [
            (config, topic_config(settings, topic, start_at or StartAt("beginning")))
            for config, topic in zip(configs, topics, strict=True)
        ]
        one = TopicIntakeRun(*chains[0]) if chain_ids is None else None
        _take_topics(one or ManyTopicsRun(chains, connections), intake_topic, http, as_json=as_json)
    elif path is not None:
        from chainctl.commands.chain.intake import standard_input
        from sequencer import FileIntake, FileOptions

        given = {name: value for name, value in file.items() if value is not None}
        if "columns" in given:
            given["columns"] = tuple(given["columns"].split(","))
        opened = None
        if is_standard_input and input_name is not None:
            path, opened = Path(input_name), standard_input()
        intake = FileIntake(path, FileOptions(name=input_name, **given), opened=opened)
        _add_file(settings, configs[0], intake, path.name, as_json=as_json)


def sequencer_config(
    settings: Settings, chain_id: int, *, unsafe_durability: bool = False, standby: bool = False
) -> SequencerConfig:
    """Return the config of a sequencer of `chain_id`. Raises SettingError."""
    from sequencer import SequencerConfig, SequencerTuning

    given = {field: getattr(settings, name) for name, field in SEQUENCER_FIELDS.items()}
    tuning = {
        field: given.pop(field) for field in given.keys() & {*SequencerTuning.__struct_fields__}
    }
    with named_as_settings(SEQUENCER_FIELDS):
        commit_seconds = min(_COMMIT_SECONDS, settings.lease_seconds * _COMMIT_PART_OF_LEASE)
        return SequencerConfig(
            chain_id=chain_id,
            database=settings.database_dsn(),
            kafka=settings.broker(),
            owner=owner_of(settings),
            unsafe_durability=unsafe_durability,
            standby=standby,
            tuning=SequencerTuning(commit_seconds=commit_seconds, **tuning),
            **given,
        )


def judge(settings: Settings) -> None:
    """Check all settings as a start does; an address may be missing. Raises SettingError."""
    read, written = ("gap_database", "audit_database"), ("database", "callback_database")
    for name in (*read, *written):
        given = getattr(settings, name)
        for address in given if isinstance(given, tuple) else (given,):
            if address:
                checked_dsn(name, address, writes=name in written)
    database, kafka = (
        settings.database or "postgresql://any@localhost/any",
        settings.kafka or "any:1",
    )
    sequencer_config(replace(settings, database=database, kafka=kafka), 1)


def _refuse_beside(option: str, others: Mapping[str, object]) -> None:
    """Raise UsageError for an option that has no effect beside `option`."""
    for name, value in others.items():
        if value is not None:
            raise click.UsageError(f"--{name.replace('_', '-')} cannot be given with {option}")


def _topics(name: str, chain_ids: tuple[int, ...] | None) -> list[str]:
    if chain_ids is None:
        return [check_topic_name(name, "--intake-topic")]
    if _CHAIN not in name:
        expected = f"a name with {_CHAIN} in it: each of --chains has a topic of its own"
        raise SettingError("--intake-topic", name, expected)
    return [
        check_topic_name(name.replace(_CHAIN, str(each)), "--intake-topic") for each in chain_ids
    ]


def _take_topics(
    intake_run: TopicIntakeRun | ManyTopicsRun, label: str, http: Address | None, *, as_json: bool
) -> None:
    """Run until interrupted or replaced, and report the records taken, however it ends."""
    try:
        with progress(label, None) as bar:
            run_async(intake_run.run(bar, http))
    finally:
        for done in intake_run.taken():
            talk(
                f"chainctl: {rate(done.records, 'record', done.seconds)} of {done.topic}: "
                f"{counted(done.orders, 'order')} added, {done.rejects:,} rejected"
            )
            if as_json:
                data_json(done)


def _add_file(
    settings: Settings, config: SequencerConfig, intake: FileIntake, name: str, *, as_json: bool
) -> None:
    """Add what is new in the file; an error gets a note of the orders added before it."""
    with intake, progress(name, intake.file_bytes) as bar:
        intake.on_progress = bar.move_to
        try:
            run_async(_add(settings, config, intake))
        except Exception as error:
            if orders := intake.stats().orders:
                error.add_note(f"orders added before that: {orders}")
            raise
        stats = intake.stats()
    _report(config.chain_id, intake.source, stats)
    if as_json:
        data_json({"chain": config.chain_id, "source": intake.source, **asdict(stats)})


async def _add(settings: Settings, config: SequencerConfig, intake: FileIntake) -> None:
    """Take the chain over only once there is something to add, and add it.

    A standby waits for the chain first: the leader may be adding this very file.
    """
    from chainctl.commands.chain.intake import taken_before
    from sequencer import open_sequencer

    if not config.standby:
        taken = await taken_before(settings, config.chain_id, intake.source)
        if not await intake.has_new(taken, config.tuning.batch_rows_max):
            return
    async with under_way(open_sequencer(config)) as sequencer:
        await intake.run(sequencer)


def _report(chain_id: int, source: str, done: FileIntakeStats) -> None:
    if done.rows_before:
        talk(f"chainctl: {counted(done.rows_before, 'row')} of {source} taken before")
    if done.repeats:
        repeats = counted(done.repeats, "row")
        talk(f"chainctl: {repeats} with keys that were in the chain before")
    if done.orders:
        talk(
            f"chainctl: {rate(done.orders, 'order', done.seconds)} added to chain {chain_id}, "
            f"ids {done.first_id} to {done.last_id}"
        )
    else:
        talk(f"chainctl: nothing to add to chain {chain_id}")
