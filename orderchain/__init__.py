"""The front door: everything that your program needs, under one name.

`from orderchain import open_sequencer, SequencerConfig` imports the sequencer and nothing else, and
needs its extra; `import orderchain` alone imports nothing. The package is also the shared kernel:
what a chain is, how it is framed, sealed and linked. No module of the engine imports the door.
"""

# There is no import here: `import orderchain` costs nothing. Type checkers treat this as true.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from chain_verifier.config import (
        DatabaseSource as DatabaseSource,
        JournalSource as JournalSource,
        ParquetSource as ParquetSource,
        TopicSource as TopicSource,
        VerifyRequest as VerifyRequest,
    )
    from chain_verifier.report import Report as Report
    from chain_verifier.spark.verify import verify as verify
    from matcher_receiver import (
        FileSnapshotStore as FileSnapshotStore,
        Receiver as Receiver,
        ReceiverConfig as ReceiverConfig,
        ReceiverStats as ReceiverStats,
        StartAt as StartAt,
        State as State,
    )
    from orderchain.clients.database_config import DatabaseConfig as DatabaseConfig
    from orderchain.clients.kafka_config import KafkaConfig as KafkaConfig
    from orderchain.monitoring import calm_collector as calm_collector
    from orderchain.errors import (
        BatchDamaged as BatchDamaged,
        BrokerAway as BrokerAway,
        ChainLed as ChainLed,
        ChainMissing as ChainMissing,
        CheckpointLost as CheckpointLost,
        ClockError as ClockError,
        ConnectError as ConnectError,
        DurabilityError as DurabilityError,
        Fenced as Fenced,
        ForeignDatabase as ForeignDatabase,
        ForkFound as ForkFound,
        FrameError as FrameError,
        GapError as GapError,
        HaltError as HaltError,
        InputError as InputError,
        IntakeLost as IntakeLost,
        IntakeMoved as IntakeMoved,
        KeyConflict as KeyConflict,
        KeyTooOld as KeyTooOld,
        NotYetReadable as NotYetReadable,
        NumberOutOfOrder as NumberOutOfOrder,
        OrderchainError as OrderchainError,
        OrderError as OrderError,
        PageDamaged as PageDamaged,
        PrimaryBehind as PrimaryBehind,
        QueueFull as QueueFull,
        RefusedError as RefusedError,
        RetryError as RetryError,
        RowsArchived as RowsArchived,
        RowsMissing as RowsMissing,
        SchemaError as SchemaError,
        SealMismatch as SealMismatch,
        SettingError as SettingError,
        SourceBroken as SourceBroken,
        StillHalted as StillHalted,
        SteppedDown as SteppedDown,
        StoppedError as StoppedError,
        TopicError as TopicError,
        UnknownOutcome as UnknownOutcome,
    )
    from orderchain.front_door import open_receiver as open_receiver
    from orderchain.model import (
        Event as Event,
        Gap as Gap,
        Mark as Mark,
        Run as Run,
        Snapshot as Snapshot,
    )
    from orderchain.monitoring import (
        LagLimits as LagLimits,
        Monitor as Monitor,
        MonitoredPart as MonitoredPart,
        Sample as Sample,
    )
    from outbox import (
        ConsumeStart as ConsumeStart,
        Consumer as Consumer,
        ConsumerConfig as ConsumerConfig,
        ConsumerStats as ConsumerStats,
        Delivery as Delivery,
        Destination as Destination,
        Message as Message,
        Refused as Refused,
        Relay as Relay,
        RelayConfig as RelayConfig,
        RetryLevels as RetryLevels,
        StartFrom as StartFrom,
        draw_message_ids as draw_message_ids,
        move_start as move_start,
        save_destinations as save_destinations,
    )
    from outbox.errors import (
        BadRecord as BadRecord,
        DestinationMissing as DestinationMissing,
        MessageError as MessageError,
        OutboxFull as OutboxFull,
        PartEnded as PartEnded,
        TransitionRefused as TransitionRefused,
    )
    from sequencer import (
        Ack as Ack,
        Order as Order,
        Refusal as Refusal,
        Sequencer as Sequencer,
        SequencerConfig as SequencerConfig,
        SequencerStats as SequencerStats,
        TopicIntake as TopicIntake,
        TopicIntakeConfig as TopicIntakeConfig,
        open_sequencer as open_sequencer,
    )

_NAMES = {
    "chain_verifier.config": (
        "DatabaseSource",
        "JournalSource",
        "ParquetSource",
        "TopicSource",
        "VerifyRequest",
    ),
    "chain_verifier.report": ("Report",),
    "chain_verifier.spark.verify": ("verify",),
    "matcher_receiver": (
        "FileSnapshotStore",
        "Receiver",
        "ReceiverConfig",
        "ReceiverStats",
        "StartAt",
        "State",
    ),
    "orderchain.clients.database_config": ("DatabaseConfig",),
    "orderchain.clients.kafka_config": ("KafkaConfig",),
    "orderchain.errors": (
        "BatchDamaged",
        "BrokerAway",
        "ChainLed",
        "ChainMissing",
        "CheckpointLost",
        "ClockError",
        "ConnectError",
        "DurabilityError",
        "Fenced",
        "ForeignDatabase",
        "ForkFound",
        "FrameError",
        "GapError",
        "HaltError",
        "InputError",
        "IntakeLost",
        "IntakeMoved",
        "KeyConflict",
        "KeyTooOld",
        "NotYetReadable",
        "NumberOutOfOrder",
        "OrderError",
        "OrderchainError",
        "PageDamaged",
        "PrimaryBehind",
        "QueueFull",
        "RefusedError",
        "RetryError",
        "RowsArchived",
        "RowsMissing",
        "SchemaError",
        "SealMismatch",
        "SettingError",
        "SourceBroken",
        "StillHalted",
        "SteppedDown",
        "StoppedError",
        "TopicError",
        "UnknownOutcome",
    ),
    "orderchain.front_door": ("open_receiver",),
    "orderchain.model": ("Event", "Gap", "Mark", "Run", "Snapshot"),
    "orderchain.monitoring": ("LagLimits", "Monitor", "MonitoredPart", "Sample", "calm_collector"),
    "outbox": (
        "ConsumeStart",
        "Consumer",
        "ConsumerConfig",
        "ConsumerStats",
        "Delivery",
        "Destination",
        "Message",
        "Refused",
        "Relay",
        "RelayConfig",
        "RetryLevels",
        "StartFrom",
        "draw_message_ids",
        "move_start",
        "save_destinations",
    ),
    "outbox.errors": (
        "BadRecord",
        "DestinationMissing",
        "MessageError",
        "OutboxFull",
        "PartEnded",
        "TransitionRefused",
    ),
    "sequencer": (
        "Ack",
        "Order",
        "Refusal",
        "Sequencer",
        "SequencerConfig",
        "SequencerStats",
        "TopicIntake",
        "TopicIntakeConfig",
        "open_sequencer",
    ),
}
"""The names that each module gives to the door."""

_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}

_EXTRA_OF = {
    "chain_verifier": "spark",
    "gapfill": "receiver",
    "matcher_receiver": "receiver",
    "outbox": "outbox",
    "sequencer": "sequencer",
}
"""The packages that the door imports from, and the extra that installs what each one imports."""

_ALSO_NEEDED = {"orderchain.front_door": ("gapfill", "matcher_receiver")}

__all__ = sorted(_MODULE_OF)


def __dir__() -> list[str]:
    return [*globals(), *__all__]


if not TYPE_CHECKING:  # otherwise type checkers would accept a misspelt name

    def __getattr__(name: str) -> object:
        """Import what `name` stands for at its first use."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(_import(name, _MODULE_OF[name]), name)
        return found


def _import(name: str, module: str) -> object:
    """Return the module that holds `name`. Raises ImportError, which says what to do."""
    from importlib import import_module

    top = module.partition(".")[0]
    packages = [one for one in (top, *_ALSO_NEEDED.get(module, ())) if one in _EXTRA_OF]
    for package in packages:
        _refuse_shadow(name, package)
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if not packages:
            raise
        from orderchain.text import not_installed

        missing = (error.name or module).partition(".")[0]
        text = f"orderchain.{name}: {not_installed(missing, _EXTRA_OF[packages[0]])}"
        raise ImportError(text, name=error.name) from error


def _refuse_shadow(name: str, package: str) -> None:
    """Refuse a file of the user that is imported in place of one of our packages.

    Otherwise such a file would run as ours; most often it is the very program that imports us.
    """
    import sys
    from importlib.util import find_spec
    from pathlib import Path

    loaded = sys.modules.get(package)
    if loaded is None:
        spec = find_spec(package)
        found = spec.origin if spec is not None else None
    else:
        found = getattr(loaded, "__file__", None)
    ours = Path(__file__).parent.with_name(package) / "__init__.py"
    if found is None or Path(found).resolve() == ours.resolve():
        return
    text = (
        f"orderchain.{name} is in orderchain's package `{package}`, and {found} is in its "
        "way: give that file, or its folder, another name"
    )
    raise ImportError(text, name=package, path=found)
