"""Small wrongs done to the outbox, each of which its worlds must find."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from uuid import UUID

from chain_kernel.clients.postgres_errors import DRIVER_ERRORS
from outbox import Relay
from outbox.consumer.admission import Admission
from outbox.consumer.attempts import FreshAttempt, Outcomes
from outbox.consumer.in_flight import KeyQueues, PartitionProgress
from outbox.consumer.inbox import Inbox
from outbox.message import smallest_id
from outbox.sender.message_sender import MessageSender
from outbox.sender.send_queues import ClaimedMessages
from outbox.sender.sweep import Sweep
from outbox.sender.transaction import BusinessCommit, BusinessTransaction
from outbox.testing.servers.inbox import InboxTables
from outbox.testing.servers.sender import DecisionTables, SenderTables
from outbox.testing.servers.sql import records
from tests.simulation.mutations import Mutation

from .world import simulate

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def inbox_forgotten() -> Iterator[None]:
    async def claim(_: Any, connection: Any, deliveries: Any) -> set[Any]:
        return {each.message_id for each in deliveries}

    with patch.object(Inbox, "claim", claim):
        yield


@contextmanager
def confirmed_before_its_effect() -> Iterator[None]:
    opened = Admission._open_fresh

    async def too_early(admission: Any, taken: Any) -> Any:
        attempt = await opened(admission, taken)
        if attempt is not None:
            attempt.outcomes.confirm(attempt.deliveries)
        return attempt

    with patch.object(Admission, "_open_fresh", too_early):
        yield


@contextmanager
def filter_filled_before_the_commit() -> Iterator[None]:
    succeed = FreshAttempt.succeed

    async def too_early(attempt: Any) -> None:
        await attempt.outcomes.fast_filter.done([each.message_id for each in attempt.deliveries])
        await succeed(attempt)

    with patch.object(FreshAttempt, "succeed", too_early):
        yield


@contextmanager
def sent_before_it_is_sent() -> Iterator[None]:
    """The relay takes what it has tried to send for acknowledged."""
    send = MessageSender.send

    async def hopeful(*given: Any) -> Any:
        results = await send(*given)
        for sent in results:
            if sent.error is not None and sent.partition >= 0:
                sent.error, sent.first_offset = None, 0
        return results

    with patch.object(MessageSender, "send", hopeful):
        yield


@contextmanager
def claim_not_checked() -> Iterator[None]:
    """What was sent under an old claim is written under the new one."""
    settled = SenderTables._settled

    async def any_claim(tables: Any, tx: Any, claims: Any, sources: Any, change: Any) -> Any:
        rows = tables.pending.all(tx)
        now_held = {key[0]: row["claim_token"] for key, row in rows.items()}
        claims = [(each, now_held.get(each)) for each, _ in claims]
        return await settled(tables, tx, claims, sources, change)

    with patch.object(SenderTables, "_settled", any_claim):
        yield


@contextmanager
def key_released_too_early() -> Iterator[None]:
    """Messages of a key are worked on at once."""
    take = KeyQueues.take

    def all_ready(queues: Any, most: int) -> Any:
        for queue in queues._queues.values():
            queues._ready.extend(queue.waiting)
            queues._waiting -= len(queue.waiting)
            queue.waiting.clear()
        busy, queues._queues = queues._queues, {}
        taken = take(queues, most)
        for name, queue in busy.items():
            held = queues._queues.setdefault(name, queue)
            held.taken += queue.taken if held is not queue else 0
        return taken

    with patch.object(KeyQueues, "take", all_ready):
        yield


@contextmanager
def key_of_a_parked_one_not_held() -> Iterator[None]:
    with patch.object(InboxTables, "_parked_keys", lambda *_: set()):
        yield


@contextmanager
def next_of_key_forgotten() -> Iterator[None]:
    async def unpark(inbox: Any, connection: Any, delivery: Any, _: int) -> None:
        await inbox._fetch(connection, "unpark", delivery.message_id)

    with patch.object(Inbox, "unpark", unpark):
        yield


@contextmanager
def offsets_of_what_is_unfinished_committed() -> Iterator[None]:
    highest = property(lambda progress: progress._next)
    with patch.object(PartitionProgress, "smallest_unfinished", highest):
        yield


@contextmanager
def failure_not_stored() -> Iterator[None]:
    async def finished(outcomes: Any, delivery: Any, _: Any) -> None:
        outcomes.finish(delivery)

    with patch.object(Outcomes, "store_failure", finished):
        yield


@contextmanager
def rolled_back_savepoint_sent() -> Iterator[None]:
    def all_of(business: Any, _: Any) -> Any:
        return [each for some in business._stored for each in some]

    with patch.object(BusinessTransaction, "kept", all_of):
        yield


@contextmanager
def unknown_commit_sent() -> Iterator[None]:
    transaction = Relay.transaction

    @asynccontextmanager
    async def hopeful(relay: Any, connection: Any) -> Any:
        business = None
        try:
            async with transaction(relay, connection) as business:
                yield business
        except DRIVER_ERRORS:
            if business is not None and business.claim is not None:
                marks = BusinessCommit(marks=range(len(business._stored)))
                relay._send_queues.hand_over(ClaimedMessages(business.claim, business.kept(marks)))
            raise

    with patch.object(Relay, "transaction", hopeful):
        yield


@contextmanager
def nothing_swept() -> Iterator[None]:
    async def sweep(*_: Any, **__: Any) -> int:
        return 0

    with patch.object(Sweep, "sweep", sweep):
        yield


@contextmanager
def inbox_retired_by_time_alone() -> Iterator[None]:
    async def retire(inbox: Any, connection: Any, keep_from_ns: int) -> None:
        await inbox._fetch(connection, "retire", smallest_id(keep_from_ns / 1e9))

    with patch.object(Inbox, "retire", retire):
        yield


ONE = {"databases": 1, "confirms": True, "idempotent": False}


@contextmanager
def not_done_and_not_stored() -> Iterator[None]:
    """A check is answered by what has committed, and nothing keeps the transaction from its end."""

    async def look(tables: Any, tx: Any, text: str, _: int) -> Any:
        row = tables.decisions.one(tx, UUID(text))
        return records("found system timeline", [("done" if row else "not_done", "1", "1")])

    with patch.object(DecisionTables, "_do_check_decision", look):
        yield


@contextmanager
def undecided_sent() -> Iterator[None]:
    with patch("outbox.sender.store._SENDABLE", (0, 1, 4)):
        yield


UNCONFIRMED = {"confirms": False, "loses_records": False}
LOSSY = {**ONE, "commit_loss": 0.3}
FAILS = {"failing": 0.4, "keys": 1, "idempotent": False}

MUTATIONS = tuple(
    partial(Mutation, simulate=simulate)(*given)
    for given in (
        (inbox_forgotten, 50, ("G6 effect twice", "G6 over"), {"idempotent": False}),
        (confirmed_before_its_effect, 50, ("G6 consumed",), {**ONE, "failing": 0.4}),
        (
            filter_filled_before_the_commit,
            100,
            ("G6 consumed", "G6 over"),
            {**ONE, "commit_loss": 0.3},
        ),
        (sent_before_it_is_sent, 50, ("G10 acknowledged", "G16"), {"broker_loss": 0.3}),
        (
            claim_not_checked,
            200,
            ("G10 tries",),
            {"relays": 2, "tries_max": 1, "fast": 0.0, "faults_per_second": 2.0},
        ),
        (key_released_too_early, 50, ("G6 overtaken",), {"at_once": 3, **FAILS}),
        (key_of_a_parked_one_not_held, 50, ("G6 overtaken",), FAILS),
        (next_of_key_forgotten, 50, ("G16",), FAILS),
        (offsets_of_what_is_unfinished_committed, 100, ("G16", "G6 over"), UNCONFIRMED),
        (failure_not_stored, 50, ("G16", "G6 over"), {**UNCONFIRMED, "failing": 0.4}),
        (rolled_back_savepoint_sent, 50, ("G6 sent and not stored",), {"fast": 1.0}),
        (unknown_commit_sent, 100, ("G6 sent and not stored",), {"fast": 1.0}),
        (nothing_swept, 20, ("G16",), {"fast": 0.0}),
        (not_done_and_not_stored, 50, ("G6 cancelled",), {"prepared": 3}),
        (undecided_sent, 50, ("G6 sent and not stored",), {"prepared": 3}),
        (inbox_retired_by_time_alone, 100, ("G6 too old",), {"retires": True, **ONE}),
    )
)
