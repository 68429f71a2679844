"""The messages between the demo's processes: one JSON object per line.

The demo writes a job to the standard input of a process it has started, as the first line, and
commands after it. (On a command line every user of the machine could read the passwords.) The
process writes reports to its standard output. When its standard input ends, the demo is gone, and
the process ends too.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from msgspec import Struct

from demo.lossy_link import Addable, LinkCounters, LinkFaults

LINE_BYTES_MAX: Final = 256 * 1024
"""The longest line: reports have a few dozen numbers."""


class SequencingJob(Struct, frozen=True, kw_only=True):
    """What the sequencing process is to do."""

    database: str
    kafka: str
    chain_id: int
    input: str
    """Path of the file whose rows are the orders."""
    batch_rows: int
    """Rows of one commit, and of one frame."""
    pause_at_row: int
    """It stops after this row until the command to go on."""


class MatchingJob(Struct, frozen=True, kw_only=True):
    """What the matching service is to do."""

    database: str
    gap_database: str
    kafka: str
    chain_id: int
    receiver: str
    """Name under which the checkpoint is stored."""
    topic: str
    handler: str
    """One of `demo.handlers.HANDLERS`."""
    journal: str
    """Path of the journal that is written."""
    faults: LinkFaults
    last_key: str
    """Key of the input's last row: the frame that ends with it is lost."""
    life: int
    """How often the service was started before, for this chain."""
    save_rows: int
    """State and checkpoint are stored after this many rows, and when nothing else is to do."""


class GoOn(Struct, frozen=True, tag="go on"):
    """To the sequencing service, which waits after each part: sequence the second, then close."""


class FinishAt(Struct, frozen=True, tag="finish at"):
    """To the matching service: the chain ends here. Save, and end once this id is processed."""

    id: int


Command = GoOn | FinishAt


Stage = Literal["under way", "first part", "all", "closed"]


class Sequenced(Struct, frozen=True, kw_only=True, tag="sequenced"):
    """From the sequencing service: its progress at intervals, and when it waits or has ended."""

    stage: Stage
    """What is done: after `first part` and `all` it waits for the command to go on, and sends
    heartbeats meanwhile."""

    rows: int
    first_id: int
    last_id: int
    frames: int
    """Frames with rows that Kafka has acknowledged."""
    seconds: float
    """Time spent on sequencing; waiting does not count."""


class ReceiverCounters(Addable, kw_only=True):
    """What the receiver did with what the link passed on."""

    frames_live: int = 0
    """Frames whose rows were handed on, whole or in part."""
    frames_duplicate: int = 0
    """Frames dropped because all their rows had been delivered."""
    frames_refused: int = 0
    """Frames dropped for any other reason: broken, of an unknown publisher, without a link."""
    rows_live: int = 0
    """Rows that came by frames."""
    rows_filled: int = 0
    """Rows that were read from the database, to fill gaps."""
    rows_caught_up: int = 0
    """Rows that were read from the database at the start."""
    gaps: int = 0
    """Gaps filled."""


class Live(Struct, frozen=True, kw_only=True, tag="live"):
    """From the matching service: it has caught up and follows the live frames."""

    head: int
    """Id of the last row processed."""


class Resumed(Struct, frozen=True, kw_only=True, tag="resumed"):
    """From the matching service, once at its start: its place before it reads anything."""

    head: int
    """head_delivered as stored with the state; 0 at the first start."""
    journal_rows_cut: int
    """Rows after the checkpoint that were cut off the journal: delivered again from now on."""


class Delivered(Struct, frozen=True, kw_only=True, tag="delivered"):
    """From the matching service: its progress."""

    head: int
    """Id of the last row processed."""
    rows: int
    """Rows processed in this life."""
    events: int
    """Rows in the state: those of all its lives, each once."""
    seconds: float
    """From its first row to its last."""
    receiver: ReceiverCounters
    link: LinkCounters
    saves: int
    """Times that state and checkpoint were stored, in one transaction each."""


class Finished(Struct, frozen=True, kw_only=True, tag="finished"):
    """From the matching service at its end: everything is delivered, stored and digested."""

    delivered: Delivered
    last_gap_shown_by: str
    """What showed the last gap: `frame`, `heartbeat`, `poll`; empty without one."""
    counters: dict[str, int]
    digest: str


Report = Sequenced | Live | Resumed | Delivered | Finished

_encoder: Final = msgspec.json.Encoder()
command_decoder: Final = msgspec.json.Decoder(Command)
report_decoder: Final = msgspec.json.Decoder(Report)


def line_of(message: Struct) -> bytes:
    """Return a message as a line."""
    return _encoder.encode(message) + b"\n"
