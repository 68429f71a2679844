"""The front door: what most programs need, under one name.

Each name is imported at its first use: `import orderchain` alone imports nothing. What else there
is has its own door: `orderchain.errors`, `orderchain.testing`, `orderchain.spark`; `outbox` for
messages.
"""

# There is no import here: `import orderchain` costs nothing. Type checkers treat this as true.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from chain_kernel import errors as errors
    from chain_kernel.clients.database_config import DatabaseConfig as DatabaseConfig
    from chain_kernel.clients.kafka_config import KafkaConfig as KafkaConfig
    from chain_kernel.model import (
        Event as Event,
        Mark as Mark,
        Run as Run,
        Snapshot as Snapshot,
    )
    from chain_kernel.monitoring import (
        LagLimits as LagLimits,
        Monitor as Monitor,
    )
    from chain_kernel.start_at import StartAt as StartAt
    from chain_verifier.config import (
        DatabaseSource as DatabaseSource,
        JournalSource as JournalSource,
        ParquetSource as ParquetSource,
        TopicSource as TopicSource,
        VerifyRequest as VerifyRequest,
    )
    from chain_verifier.dataframe.fold import Fold as Fold
    from chain_verifier.report import Report as Report
    from chain_verifier.spark.verify import verify as verify
    from matcher_receiver import (
        FileSnapshotStore as FileSnapshotStore,
        Receiver as Receiver,
        ReceiverConfig as ReceiverConfig,
        ReceiverTuning as ReceiverTuning,
        State as State,
    )
    from orderchain.front_door import (
        open_receiver as open_receiver,
        state_as_of as state_as_of,
    )
    from sequencer import (
        Ack as Ack,
        FileIntake as FileIntake,
        FileOptions as FileOptions,
        Order as Order,
        Sequencer as Sequencer,
        SequencerConfig as SequencerConfig,
        SequencerTuning as SequencerTuning,
        TopicIntake as TopicIntake,
        TopicIntakeConfig as TopicIntakeConfig,
        open_sequencer as open_sequencer,
        open_sequencers as open_sequencers,
    )

_NAMES = {
    "chain_kernel": ("errors",),
    "chain_kernel.clients.database_config": ("DatabaseConfig",),
    "chain_kernel.clients.kafka_config": ("KafkaConfig",),
    "chain_kernel.model": ("Event", "Mark", "Run", "Snapshot"),
    "chain_kernel.monitoring": ("LagLimits", "Monitor"),
    "chain_kernel.start_at": ("StartAt",),
    "chain_verifier.config": (
        "DatabaseSource",
        "JournalSource",
        "ParquetSource",
        "TopicSource",
        "VerifyRequest",
    ),
    "chain_verifier.dataframe.fold": ("Fold",),
    "chain_verifier.report": ("Report",),
    "chain_verifier.spark.verify": ("verify",),
    "matcher_receiver": (
        "FileSnapshotStore",
        "Receiver",
        "ReceiverConfig",
        "ReceiverTuning",
        "State",
    ),
    "orderchain.front_door": ("open_receiver", "state_as_of"),
    "sequencer": (
        "Ack",
        "FileIntake",
        "FileOptions",
        "Order",
        "Sequencer",
        "SequencerConfig",
        "SequencerTuning",
        "TopicIntake",
        "TopicIntakeConfig",
        "open_sequencer",
        "open_sequencers",
    ),
}
"""The names that each module gives to the door."""

_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}

_EXTRA_OF = {
    "chain_verifier": "spark",
    "matcher_receiver": "receiver",
    "orderchain": "receiver",
    "sequencer": "sequencer",
}
"""The packages that the door imports from, and the extra that installs what each one imports."""

__version__: str
"""The version of the installed distribution; `unknown` for a checkout without one."""

__all__: list[str]
"""Names that can be imported here: made when they are asked for, by `__getattr__`."""


def __dir__() -> list[str]:
    return [*globals(), *_MODULE_OF]


if not TYPE_CHECKING:  # otherwise type checkers would accept a misspelt name

    def __getattr__(name: str) -> object:
        """Import what `name` stands for at its first use."""
        if name == "__version__":
            from chain_kernel.version import installed_version

            return installed_version()
        from chain_kernel.doors import imported

        found = globals()[name] = imported(__name__, name, _MODULE_OF, _EXTRA_OF)
        return found
