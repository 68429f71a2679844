"""Gives each order its id and pid, commits batches to PostgreSQL, then publishes them to Kafka."""

from sequencer.config import SequencerConfig
from sequencer.order import Ack, Order
from sequencer.service import Sequencer, open_sequencer
from sequencer.stats import SequencerStats

__all__ = ["Ack", "Order", "Sequencer", "SequencerConfig", "SequencerStats", "open_sequencer"]
