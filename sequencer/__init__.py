"""Gives each order its id and pid, commits batches to PostgreSQL, then publishes them to Kafka."""

from typing import TYPE_CHECKING

from chain_kernel.doors import imported, needs_extra, without_missing

with needs_extra("sequencer", __name__):
    from sequencer.config import SequencerConfig, SequencerTuning, TopicIntakeConfig
    from sequencer.intake.file_intake import FileIntake, FileIntakeStats
    from sequencer.intake.order_file import FileOptions
    from sequencer.many import SharedConnections, open_sequencers
    from sequencer.order import Ack, Order
    from sequencer.service import Sequencer, open_sequencer
    from sequencer.stats import SequencerStats
    from sequencer.submission import Refusal

if TYPE_CHECKING:
    from sequencer.intake.reader import check_intake_topic, refused_topics
    from sequencer.intake.topic import TopicIntake, TopicIntakeStats

__all__ = [
    "Ack",
    "FileIntake",
    "FileIntakeStats",
    "FileOptions",
    "Order",
    "Refusal",
    "Sequencer",
    "SequencerConfig",
    "SequencerStats",
    "SequencerTuning",
    "SharedConnections",
    "TopicIntake",
    "TopicIntakeConfig",
    "TopicIntakeStats",
    "check_intake_topic",
    "open_sequencer",
    "open_sequencers",
    "refused_topics",
]

_OF_KAFKA = {
    "TopicIntake": "sequencer.intake.topic",
    "TopicIntakeStats": "sequencer.intake.topic",
    "check_intake_topic": "sequencer.intake.reader",
    "refused_topics": "sequencer.intake.reader",
}
"""Names that need a client of Kafka, which a chain without a broker does not have."""

if not TYPE_CHECKING:  # otherwise type checkers would accept a misspelt name
    __all__ = without_missing(__all__, _OF_KAFKA, "aiokafka")

    def __getattr__(name: str) -> object:
        """Import what `name` stands for at its first use."""
        found = globals()[name] = imported(__name__, name, _OF_KAFKA, {"sequencer": "kafka"})
        return found
