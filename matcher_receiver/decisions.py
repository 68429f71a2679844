"""Decisions of the core. The shell does them; nothing else is ever done with a frame."""

from __future__ import annotations

from enum import Enum
from typing import Final

from msgspec import Struct

from chain_kernel.errors import HaltError
from chain_kernel.model import Cause


class State(Enum):
    """State of a receiver. `docs/protocol.md` has every cell of the table."""

    CATCHING_UP = "catching up"
    """Reading the database up to the head that was found at the start."""
    LIVE = "live"
    """Delivering live frames."""
    FILLING = "filling"
    """Reading missing rows from the database; live frames wait."""
    HALTED = "halted"
    """The primary contradicts what was delivered. Only a person can resolve this."""


class Deliver(Struct, frozen=True):
    """The frame is the next one: deliver its rows."""


class DeliverNewPart(Struct, frozen=True):
    """The first rows of the frame were delivered before: deliver those after the head."""


class Drop(Struct, frozen=True):
    """The frame is useless. `reason` is a short, stable word for counting."""

    reason: str


class Check(Struct, frozen=True):
    """Drop the frame, and ask the database about our own head: one of the two is wrong."""

    reason: str


class ConfirmNonce(Struct, frozen=True):
    """The term is not known: ask the database for its terms, then judge again."""


class Fill(Struct, frozen=True):
    """Rows after the head up to and including `until_id` are missing: read them."""

    until_id: int
    cause: Cause


class InStep(Struct, frozen=True):
    """The other side is where we are."""


class Wait(Struct, frozen=True):
    """A standby does not know yet. Ask again later; its answer never halts."""


class Compare(Struct, frozen=True):
    """Only the seal contradicts: read the last batch again, and compare its rows."""


class Halt(Struct, frozen=True):
    """The primary contradicts what was delivered."""

    error: HaltError


FrameDecision = Deliver | DeliverNewPart | Drop | Check | ConfirmNonce | Fill | InStep
PositionDecision = InStep | Fill | Wait | Compare | Halt
GapDecision = Fill | Drop | Wait | Halt

# One instance each: frames are judged some thousand times per second.
DELIVER: Final = Deliver()
DELIVER_NEW_PART: Final = DeliverNewPart()
CONFIRM_NONCE: Final = ConfirmNonce()
IN_STEP: Final = InStep()
WAIT: Final = Wait()
COMPARE: Final = Compare()
DROP_CHAIN: Final = Drop("chain")
DROP_MAC: Final = Drop("mac")
DROP_OLD: Final = Drop("old")
DROP_NONCE: Final = Drop("nonce")
DROP_PHANTOM: Final = Drop("phantom")
DROP_SUSPECT: Final = Drop("suspect")
CHECK_SEAL: Final = Check("seal")
CHECK_EPOCH: Final = Check("epoch")
CHECK_LINK: Final = Check("link")
