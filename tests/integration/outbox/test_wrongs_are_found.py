"""What is done to deliveries without regard to the table of statuses is found by the judge."""

from __future__ import annotations

import pytest

from outbox.sender.store import RelayStore
from tests.judge.deliveries import judge_deliveries
from tests.judge.rules import Diverged

from .conftest import CONSUMER, Sender

pytestmark = pytest.mark.postgres

WRONGS = {
    "G16 waits or has ended": "DELETE FROM outbox_pending",
    "G10 ends once": "UPDATE outbox_done SET status = 6",
    "G10 end stays": "DELETE FROM outbox_done",
    "G10 hand on record": "UPDATE outbox_pending SET status = 0",
}
"""A delivery that vanishes; `consumed` undone, and forgotten; and one that is moved unseen."""


@pytest.mark.guarantee("G10", "G16")
@pytest.mark.parametrize("rule", WRONGS)
async def test_wrong_that_is_done_to_a_delivery_is_found(sender: Sender, rule: str) -> None:
    await sender.set_up()
    consumed, _ = await sender.store(2)
    store = RelayStore(sender.config(), lambda: None)
    await store.apply([(consumed, CONSUMER)])
    await store.close()
    await sender.admin.execute("UPDATE outbox_pending SET status = 3")
    undone = sender.admin.transaction()
    await undone.start()
    await sender.admin.execute("SET SESSION AUTHORIZATION orderchain_owner")
    await sender.admin.execute(WRONGS[rule])
    await sender.admin.execute("RESET SESSION AUTHORIZATION")
    with pytest.raises(Diverged, match=rule):
        await judge_deliveries(sender.admin)
    await undone.rollback()
