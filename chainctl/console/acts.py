"""What the console does by hand: the acts of the commands, asked for in JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, get_args
from uuid import UUID

from msgspec import Meta, Struct

from chainctl.commands.outbox.deliveries import act_on_deliveries
from chainctl.commands.receivers import change_receiver
from chainctl.commands.status import change_leader
from chainctl.options import act_by_hand
from orderchain.errors import SettingError
from orderchain.limits import CHAIN_ID_MAX, ID_MAX
from orderchain.text import counted
from outbox.acts import Act, Changed, DeliveryFilter

if TYPE_CHECKING:
    from chainctl.options import ActByHand
    from chainctl.settings import Settings

DELIVERIES_MAX: Final = 1_000
"""Deliveries of one act."""

_Text = Annotated[str, Meta(max_length=1_000)]
_Chain = Annotated[int, Meta(ge=1, le=CHAIN_ID_MAX)]


class ActRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """What every act is asked with."""

    reason: _Text
    actor: _Text | None = None
    """Who acts; None for the user who runs the console."""
    dry_run: bool
    """Do it, report what it did, and take it back."""

    @property
    def by(self) -> ActByHand:
        """Who acts and why. Raises SettingError for a text that says nothing."""
        return act_by_hand(self.actor or None, self.reason, self.dry_run)


class LeaderRequest(ActRequest):
    """An act on the leader of a chain."""

    chain: _Chain


class ReceiverRequest(ActRequest):
    """An act on a receiver of a chain."""

    chain: _Chain
    receiver: _Text


class MoveRequest(ReceiverRequest):
    """A checkpoint to be moved."""

    to_id: Annotated[int, Meta(ge=0, le=ID_MAX)]


class DeliveriesRequest(ActRequest):
    """An act on deliveries: those of these messages, to this destination, for this consumer."""

    message_ids: Annotated[list[UUID], Meta(max_length=DELIVERIES_MAX)] = []
    destination: _Text | None = None
    consumer: _Text | None = None


class ActReport(Struct, frozen=True, kw_only=True):
    """What an act did, or would do."""

    act: str
    dry_run: bool
    actor: str
    act_id: int | None = None
    """The row of chain_act that records it; None for a dry run, and for acts on deliveries."""
    lines: list[str]
    """What it did, in sentences."""
    deliveries: list[Changed] = []


OF_LEADERS: Final = ("step-down", "takeover")
OF_RECEIVERS: Final = ("forget", "reset", "unhalt")
OF_DELIVERIES: Final[tuple[Act, ...]] = get_args(Act)

_LEADER_LINES: Final = {
    ("step-down", True): "The leader would be asked to hand over.",
    ("step-down", False): "The leader is asked to hand over; it learns of it with its next beat.",
    ("takeover", True): "The lease would be free: the next process leads at once.",
    ("takeover", False): "The lease is free: the next process leads at once.",
}


def asked_by(act: str) -> type[ActRequest] | None:
    """Return what `act` is asked with; None where there is no such act."""
    if act in OF_LEADERS:
        return LeaderRequest
    if act in OF_RECEIVERS:
        return ReceiverRequest
    if act == "move":
        return MoveRequest
    return DeliveriesRequest if act in OF_DELIVERIES else None


async def perform(settings: Settings, act: str, asked: ActRequest) -> ActReport:
    """Do what is asked, with the checks and the record of the command. Raises as the command."""
    if isinstance(asked, LeaderRequest):
        return await _on_leader(settings, act, asked)
    if isinstance(asked, ReceiverRequest):
        return await _on_receiver(settings, act, asked)
    if isinstance(asked, DeliveriesRequest):
        return await _on_deliveries(settings, act, asked)
    raise SettingError("act", act, "an act of the console")


async def _on_leader(settings: Settings, act: str, asked: LeaderRequest) -> ActReport:
    by = asked.by
    done = await change_leader(settings, asked.chain, act, by)
    lines = [_LEADER_LINES[act, by.is_dry_run], f"Epoch {done.epoch} ends with that."]
    return _acted(act, by, lines, done.act_id)


async def _on_receiver(settings: Settings, act: str, asked: ReceiverRequest) -> ActReport:
    by = asked.by
    to_id = asked.to_id if isinstance(asked, MoveRequest) else None
    done = await change_receiver(settings, asked.chain, asked.receiver, act, by, to_id)
    return _acted(act, by, [f"From: {done.was}", f"To: {done.now}"], done.act_id)


async def _on_deliveries(settings: Settings, act: str, asked: DeliveriesRequest) -> ActReport:
    by = asked.by
    what = next(each for each in OF_DELIVERIES if each == act)
    chosen = DeliveryFilter(
        message_ids=tuple(asked.message_ids),
        destination=asked.destination,
        consumer=asked.consumer,
        limit=DELIVERIES_MAX,
    )
    if not any((chosen.message_ids, chosen.destination, chosen.consumer)):
        raise SettingError("message_ids", None, "messages, a destination or a consumer")
    changed = list(await act_on_deliveries(settings, what, chosen, by))
    would = "would be" if by.is_dry_run else "is" if len(changed) == 1 else "are"
    many = counted(len(changed), "delivery", "deliveries")
    lines = [f"{many} {would} changed by {act}."]
    if len(changed) == DELIVERIES_MAX:
        lines.append("There may be more: act again for the rest.")
    return _acted(act, by, lines, None, changed)


def _acted(
    act: str,
    by: ActByHand,
    lines: list[str],
    act_id: int | None,
    changed: list[Changed] | None = None,
) -> ActReport:
    return ActReport(
        act=act,
        dry_run=by.is_dry_run,
        actor=by.actor,
        act_id=act_id,
        lines=lines,
        deliveries=changed or [],
    )
