"""Every error of the engine, sorted by what the caller does next.

OrderchainError
├── RefusedError          fix what you gave; nothing was done             (exit code 2)
│   ├── SettingError          a flag, an environment variable, a TOML value
│   ├── InputError            the content of an input file
│   ├── OrderError            an order: its key, payload or time
│   │   ├── KeyConflict           the same key with another payload
│   │   ├── KeyTooOld             a client's number that is no longer remembered
│   │   └── NumberOutOfOrder      a client's number below its highest, never accepted
│   ├── ConnectError          a database or a broker refused us, or is not there
│   ├── SchemaError           the schema is missing, or of another version
│   ├── ChainMissing          the chain was never created
│   ├── TopicError            the topic is missing, or not as the protocol needs it
│   ├── DurabilityError       the database may lose what it has acknowledged
│   └── ClockError            the clock of this machine is years ahead, or out of range
├── RetryError            the same call may succeed later; nothing was changed
│   ├── RowLocked             somebody holds the lock of the chain's row
│   ├── QueueFull             `submit_nowait` found no room
│   ├── Busy                  no commit began for an order as soon as its caller asked
│   ├── BrokerAway            the broker has been away for longer than the policy allows
│   ├── ChainLed              another process leads the chain, and is alive
│   ├── NotYetReadable        a standby has not replayed the range yet
│   └── SourceBroken          a source ended early, or changed, while it was being verified
├── StoppedError          this object no longer works; open a new one
│   ├── Fenced                this process no longer leads the chain
│   ├── SteppedDown           an operator asked this leader to hand over
│   ├── IntakeMoved           an intake's place is not where this intake left it
│   └── CheckpointLost        this receiver's checkpoint is not where it was left
├── UnknownOutcome        the commit may or may not have happened, and could not be read back
├── GapError              rows could not be read, and were not skipped
│   ├── RowsMissing           the primary lacks them
│   └── RowsArchived          they were moved to the archive
├── HaltError             the primary contradicts what was delivered: a person must look
│   ├── ForkFound
│   ├── SealMismatch
│   ├── PageDamaged           a stored page lacks values
│   ├── BatchDamaged          the rows of a stored batch do not give its seal
│   ├── ForeignDatabase
│   ├── PrimaryBehind
│   └── StillHalted           it halted before, and that halt was not lifted
├── IntakeLost            an intake's source lacks what comes next: a person must look
└── FrameError            one record is unusable; drop it, count it, read the database
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Self

from chain_kernel.masks import masked
from chain_kernel.text import printable

__all__ = [
    "BatchDamaged",
    "BrokerAway",
    "Busy",
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
    "RowLocked",
    "RowsArchived",
    "RowsMissing",
    "SchemaError",
    "SealMismatch",
    "SettingError",
    "SourceBroken",
    "SteppedDown",
    "StillHalted",
    "StoppedError",
    "TopicError",
    "UnknownOutcome",
]

if TYPE_CHECKING:
    from datetime import datetime


MESSAGE_CHARACTERS_MAX: Final = 2_000
"""The most characters of an error's message, a line for people. The main point comes first."""


class OrderchainError(Exception):
    """Something the engine refuses to do, or could not do.

    Its text is always one printable line, and never empty: a message holds names and answers that
    others wrote, and goes to logs and terminals.
    """

    def __str__(self) -> str:
        return printable(super().__str__() or type(self).__name__, MESSAGE_CHARACTERS_MAX)

    def again(self) -> Self:
        """Return a copy to raise, which refers to no frame yet.

        Who keeps an error and raises it keeps the frames that it passes, and they refer to him.
        """
        copy = type(self).__new__(type(self), *self.args)
        copy.__dict__.update(self.__dict__)
        copy.__cause__, copy.__suppress_context__ = self.__cause__, True
        return copy


class RefusedError(OrderchainError):
    """A value that was given cannot be used, and nothing was done.

    `field` names what to fix, `value` is what was given (never a secret), None for nothing.
    """

    def __init__(self, field: str, value: object, expected: str) -> None:
        shown = os.fspath(value) if isinstance(value, os.PathLike) else value
        given = "not given" if value is None else repr(shown)
        super().__init__(f"{field} was {given}, expected {expected}")
        self.field = field
        self.value = value
        self.expected = expected


class SettingError(RefusedError):
    """A setting is missing, malformed, or out of its bounds."""

    def __init__(self, field: str, value: object, expected: str) -> None:
        super().__init__(field, masked(value) if isinstance(value, str) else value, expected)


class InputError(RefusedError):
    """An input file cannot be read from `line` (counted from 1) on; the rows before it are kept."""

    def __init__(self, field: str, value: object, expected: str, line: int | None = None) -> None:
        super().__init__(field, value, expected)
        self.line = line
        if line is not None:
            self.args = (f"line {line}: {self.args[0]}",)


class OrderError(RefusedError):
    """An order was refused before an id was taken; the other orders of its batch are unaffected."""


class KeyConflict(OrderError):
    """The key was given before with another payload; `id` is the row that holds it.

    None where both came together: then the first one becomes a row.
    """

    def __init__(self, key: str, id: int | None) -> None:  # noqa: A002 - the protocol's own word
        became = "came first" if id is None else f"became id {id}"
        super().__init__("key", key, f"the payload with which it {became}")
        self.id = id


class KeyTooOld(OrderError):
    """The client's number is below its highest, and its outcome is no longer remembered.

    It may have been accepted: never treat this error as proof that it was not.
    """

    def __init__(self, key: str, highest: int) -> None:
        super().__init__("key", key, f"a number above {highest}, or one that is still remembered")
        self.highest = highest


class NumberOutOfOrder(OrderError):
    """The client's number is below its highest, and was never accepted: numbers must rise."""

    def __init__(self, key: str, highest: int) -> None:
        super().__init__("key", key, f"a number above {highest}: this one was never accepted")
        self.highest = highest


class ConnectError(RefusedError):
    """The server refused the connection, the login, or is not there."""


class SchemaError(RefusedError):
    """The database does not have our schema, or has another version of it."""


class ChainMissing(RefusedError):
    """The chain was never created. Only `chainctl chain create` makes one."""

    def __init__(self, chain_id: int) -> None:
        super().__init__("chain", chain_id, f"a created chain (chainctl chain create {chain_id})")


class TopicError(RefusedError):
    """The topic is missing, has not exactly one partition, or is compacted."""


class DurabilityError(RefusedError):
    """The database is set to lose acknowledged rows on a crash."""


class ClockError(RefusedError):
    """The clock of this machine would put wrong times into the chain permanently: correct it."""


class RetryError(OrderchainError):
    """The same call may succeed later; nothing was changed."""


class RowLocked(RetryError):
    """Somebody holds the lock of the chain's row: nothing was committed, and the term goes on."""

    def __init__(self, chain_id: int) -> None:
        super().__init__(f"chain {chain_id}: somebody holds the lock of its row in chain_head")


class QueueFull(RetryError):
    """The queue of a sequencer is full; `submit` would have waited."""


class Busy(RetryError):
    """No commit began for an order within the seconds that it may wait: it was not accepted."""

    def __init__(self, within: float) -> None:
        super().__init__(f"no commit began for the order within {within:g} s: it was not accepted")
        self.within = within


class BrokerAway(RetryError):
    """The broker has been away for longer than the policy allows; the order was not accepted."""

    def __init__(self, chain_id: int, away_seconds: float) -> None:
        super().__init__(
            f"chain {chain_id}: the broker has not answered for {away_seconds:.1f} s, and no order "
            "is accepted without it (when_kafka_is_away)"
        )
        self.chain_id = chain_id
        self.away_seconds = away_seconds


class ChainLed(RetryError):
    """Another process leads the chain and is alive; `owner` is the name that it gave."""

    def __init__(self, chain_id: int, owner: str) -> None:
        super().__init__(
            f"chain {chain_id} is led by {owner}, which is alive (start as a standby to wait)"
        )
        self.chain_id = chain_id
        self.owner = owner


class NotYetReadable(RetryError):
    """The source is a standby that has not replayed rows up to `until_id` yet."""

    def __init__(self, after_id: int, until_id: int) -> None:
        super().__init__(f"rows after {after_id} up to {until_id} are not readable here yet")
        self.after_id = after_id
        self.until_id = until_id


class SourceBroken(RetryError):
    """A source ended early, or changed, while it was verified: nothing is known about the whole."""

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(f"{source}: could not be read to its end: {reason}")
        self.source = source
        self.reason = reason


class StoppedError(OrderchainError):
    """This object no longer works; open a new one."""


class Fenced(StoppedError):
    """The chain is no longer led by this process: nothing was written, and nothing will be.

    `current_epoch` and `owner` are those of the process that took the chain over. They are None
    where no one has looked, or where no other process did, such as after an UPDATE by hand.
    """

    def __init__(
        self,
        chain_id: int,
        epoch: int,
        current_epoch: int | None = None,
        owner: str | None = None,
    ) -> None:
        now = "and the chain is no longer as this process left it"
        if current_epoch is not None:
            now = f"another process took it over: {owner}, in epoch {current_epoch}"
        super().__init__(f"chain {chain_id}: fenced: our epoch was {epoch}, {now}")
        self.chain_id = chain_id
        self.epoch = epoch
        self.current_epoch = current_epoch
        self.owner = owner

    def named_by(self, epoch: int, owner: str) -> Fenced:
        """Return the same with who leads, as it was seen afterwards, if another process does."""
        if epoch <= self.epoch:
            return self
        return Fenced(self.chain_id, self.epoch, epoch, owner)


class SteppedDown(StoppedError):
    """An operator asked this leader to hand over: what it had accepted is committed, the next
    process leads. Submit the order there.
    """

    def __init__(self, chain_id: int, epoch: int) -> None:
        super().__init__(f"chain {chain_id}: stepped down on request, in epoch {epoch}")
        self.chain_id = chain_id
        self.epoch = epoch


class IntakeMoved(StoppedError):
    """An intake's place is not where this intake left it: another one reads the source, or orders
    before these were not taken. Nothing was stored; restart from the stored place.
    """

    def __init__(self, source: str, previous: int | None) -> None:
        place = "its beginning" if previous is None else f"position {previous}"
        super().__init__(
            f"{source}: these orders follow {place}, and the chain has not taken it up to just "
            "there: another intake reads it, or orders before these were not taken"
        )
        self.source = source
        self.previous = previous


class CheckpointLost(StoppedError):
    """The checkpoint is not where this receiver left it: another one works under its name, the
    database was restored from a backup, or a transaction of the caller that seemed to have failed
    was committed. `found_id` is where it is now, None where none is stored.
    """

    def __init__(
        self, chain_id: int, receiver: str, expected_id: int, found_id: int | None
    ) -> None:
        found = "is gone" if found_id is None else f"was at {found_id}"
        super().__init__(
            f"chain {chain_id}: the checkpoint of receiver {receiver!r} {found}, expected "
            f"{expected_id}: another receiver works under this name, the database was restored "
            "from a backup, or a commit of this receiver's caller took effect late"
        )
        self.chain_id = chain_id
        self.receiver = receiver
        self.expected_id = expected_id
        self.found_id = found_id


class UnknownOutcome(OrderchainError):
    """A commit was sent, its answer was lost, and it could not be read back."""

    def __init__(self, chain_id: int, epoch: int, first_id: int, last_id: int) -> None:
        super().__init__(
            f"chain {chain_id}: epoch {epoch}: it is not known whether ids {first_id} to "
            f"{last_id} were committed"
        )
        self.chain_id = chain_id
        self.epoch = epoch
        self.first_id = first_id
        self.last_id = last_id


class GapError(OrderchainError):
    """Rows could not be read. They were not skipped: the caller is still before them."""

    reason = "could not be read"

    def __init__(self, chain_id: int, after_id: int, until_id: int) -> None:
        super().__init__(f"chain {chain_id}: rows after {after_id} up to {until_id} {self.reason}")
        self.chain_id = chain_id
        self.after_id = after_id
        self.until_id = until_id


class RowsMissing(GapError):
    """The primary has no linked rows over the whole range."""

    reason = "are missing in the database"


class RowsArchived(GapError):
    """The range is before the archive's boundary."""

    reason = "were archived"


HALT_RUNBOOK: Final = 'docs/runbooks/halted-receiver.md, "What to do"'
"""The page that the line about a halt points a person to."""


class HaltError(OrderchainError):
    """The primary contradicts what was delivered. Never skipped, guessed, or reset."""


class ForkFound(HaltError):
    """The primary holds other rows than those delivered, after the same parent."""

    def __init__(self, chain_id: int, pid: int, delivered_id: int, found_id: int | None) -> None:
        super().__init__(
            f"chain {chain_id}: fork after {pid}: delivered {delivered_id}, the database has "
            f"{'no such row' if found_id is None else found_id}"
        )
        self.chain_id = chain_id
        self.pid = pid
        self.delivered_id = delivered_id
        self.found_id = found_id


class SealMismatch(HaltError):
    """The seal after a batch is not the one that the delivered rows had."""

    def __init__(self, chain_id: int, last_id: int, expected: bytes, found: bytes) -> None:
        super().__init__(
            f"chain {chain_id}: seal after {last_id} was {found.hex()[:16]}..., "
            f"expected {expected.hex()[:16]}..."
        )
        self.chain_id = chain_id
        self.last_id = last_id
        self.expected = expected
        self.found = found


class PageDamaged(HaltError):
    """A stored page lacks a value of some kind for some of its rows: somebody changed it.

    `lacks` names the arrays that are not whole, with their bounds and their number of NULLs. None
    of the page's rows was handed on.
    """

    def __init__(self, chain_id: int, first_id: int, last_id: int, lacks: str) -> None:
        super().__init__(
            f"chain {chain_id}: the stored page of ids {first_id} to {last_id} lacks values: "
            f"{lacks}"
        )
        self.chain_id = chain_id
        self.first_id = first_id
        self.last_id = last_id
        self.lacks = lacks


class BatchDamaged(HaltError):
    """The rows of a stored batch do not give its seal: somebody changed them, or the batch's entry.

    `first_id` and `last_id` are those of its entry in `chain_batch`, `expected` is the seal that is
    stored there, `found` is the seal that its rows give.
    """

    def __init__(
        self, chain_id: int, first_id: int, last_id: int, expected: bytes, found: bytes
    ) -> None:
        super().__init__(
            f"chain {chain_id}: the batch of ids {first_id} to {last_id} was changed: its rows "
            f"give the seal {found.hex()[:16]}..., stored is {expected.hex()[:16]}..."
        )
        self.chain_id = chain_id
        self.first_id = first_id
        self.last_id = last_id
        self.expected = expected
        self.found = found


class ForeignDatabase(HaltError):
    """The database is not the one that this receiver has read so far."""

    def __init__(self, chain_id: int, expected: str, found: str) -> None:
        super().__init__(f"chain {chain_id}: database id was {found}, expected {expected}")
        self.chain_id = chain_id
        self.expected = expected
        self.found = found


class PrimaryBehind(HaltError):
    """The primary's head is below what was already delivered: rows were lost."""

    def __init__(self, chain_id: int, head_persisted: int, head_delivered: int) -> None:
        super().__init__(
            f"chain {chain_id}: the database ends at {head_persisted}, but {head_delivered} was "
            "already delivered"
        )
        self.chain_id = chain_id
        self.head_persisted = head_persisted
        self.head_delivered = head_delivered


class IntakeLost(OrderchainError):
    """An intake's source no longer holds what comes next, or is not the same source as before.

    Orders that were never sequenced may be lost: nothing is skipped, and nothing is guessed.
    """

    def __init__(self, source: str, position: int, found: str) -> None:
        super().__init__(f"{source}: read up to offset {position}, but {found}")
        self.source = source
        self.position = position
        self.found = found


class StillHalted(HaltError):
    """The receiver halted before, and stays halted until a person lifts it (`chainctl unhalt`)."""

    def __init__(
        self, chain_id: int, receiver: str, at_id: int, halted_at: datetime, detail: str
    ) -> None:
        super().__init__(
            f"chain {chain_id}: receiver {receiver!r} halted at {at_id} on "
            f"{halted_at:%Y-%m-%d %H:%M:%S} UTC: {detail} (when that is understood: chainctl "
            f"unhalt {receiver} --chain {chain_id} --reason ...)"
        )
        self.chain_id = chain_id
        self.receiver = receiver
        self.at_id = at_id
        self.halted_at = halted_at
        self.detail = detail


class FrameError(OrderchainError):
    """One record is not a usable frame. `reason` is a short, stable word for counting."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
