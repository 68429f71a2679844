"""Gives each order its id and pid, commits batches to PostgreSQL, then publishes them to Kafka."""

from chain_kernel.doors import needs_extra

with needs_extra("sequencer", __name__):
    from sequencer.config import SequencerConfig, SequencerTuning, TopicIntakeConfig
    from sequencer.intake.file import FileOptions
    from sequencer.intake.files import FileIntake, FileIntakeStats
    from sequencer.intake.reader import check_intake_topic, refused_topics
    from sequencer.intake.topic import TopicIntake, TopicIntakeStats
    from sequencer.many import SharedConnections, open_sequencers
    from sequencer.order import Ack, Order
    from sequencer.service import Sequencer, open_sequencer
    from sequencer.stats import SequencerStats
    from sequencer.submission import Refusal

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
