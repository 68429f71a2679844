"""Gives each order its id and pid, commits batches to PostgreSQL, then publishes them to Kafka."""

from sequencer.config import SequencerConfig
from sequencer.intake_config import TopicIntakeConfig
from sequencer.order import Ack, Order
from sequencer.service import Sequencer, open_sequencer
from sequencer.sifting import Refusal
from sequencer.stats import SequencerStats
from sequencer.topic_intake import TopicIntake, TopicIntakeStats
from sequencer.topic_reader import check_intake_topic

__all__ = [
    "Ack",
    "Order",
    "Refusal",
    "Sequencer",
    "SequencerConfig",
    "SequencerStats",
    "TopicIntake",
    "TopicIntakeConfig",
    "TopicIntakeStats",
    "check_intake_topic",
    "open_sequencer",
]
