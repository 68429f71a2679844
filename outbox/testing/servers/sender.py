"""The sender's tables in memory: what `outbox/sql` says of them, statement by statement."""

from __future__ import annotations

import asyncio
from binascii import a2b_base64
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgspec
from msgspec.structs import asdict

from chain_kernel.sql import load_sql
from chain_kernel.testing.memory_sql import stored_already
from chain_kernel.testing.virtual_loop import virtual_clock
from outbox.message import Message, smallest_id
from outbox.sender.transaction import STORE, WAKE, add
from outbox.session import OUTBOX_TABLES
from outbox.testing.servers.sql import GONE, NEVER, Record, Rows, after, now, records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import datetime

    from chain_kernel.testing.memory_sql import MemoryConnection, SqlTransaction
    from outbox.destination import Destination
    from outbox.testing.servers.sql import Changed, Key, OutboxDatabase, Row, Value

    Ids = Sequence[UUID]
    Names = Sequence[str]

PREPARED: Final = load_sql("outbox", "sql/prepared.sql")
CHECKED: Final = load_sql("outbox", "sql/checked_sender.sql")
FILES: Final = ("store", "acts", "service")

ABNORMAL: Final = "message_id consumer destination send_count last_error"


class SenderTables:
    """`outbox_message`, `outbox_pending`, `outbox_done`, `outbox_progress`, and the decisions."""

    def __init__(self, database: OutboxDatabase, key: bytes) -> None:
        self._database = database
        self._key = key
        self.destinations: dict[str, Destination] = {}
        self.messages = Rows(database, "message")
        self.pending = Rows(database, "pending")
        self.done = Rows(database, "done")
        self.progress = Rows(database, "progress")
        self.decisions = Rows(database, "decision")
        named = {"store": STORE, "wake": WAKE, "version": OUTBOX_TABLES.version_statement}
        for statements in (
            PREPARED,
            named,
            *(load_sql("outbox", f"sql/{each}.sql") for each in FILES),
        ):
            database.answer_all(statements, self)
        database.answer_all(CHECKED, _CheckedSender(self))
        for count in range(2, 6):
            given = ", ".join(f"${number}" for number in range(1, count + 1))
            database.build_in(f"SELECT outbox_add({given})", _add_one)

    # -- adding ------------------------------------------------------------------------------------

    async def _do_version(self, tx: SqlTransaction) -> list[Record]:
        return records("version upgrade_to", [(1, None)])

    async def _do_store(self, tx: SqlTransaction, *given: Value) -> list[Record]:
        claim, check_at, sender, mark = given[5:]
        headers_of = [None if each is None else msgspec.json.decode(each) for each in given[3]]
        messages = [
            Message(UUID(message_id), destination, a2b_base64(payload), key, headers)
            for message_id, destination, key, headers, payload in zip(
                *given[:3], headers_of, given[4], strict=True
            )
        ]
        if refused := list(self._refused(messages)):
            return records("position destination payload_bytes_max", refused)
        for message in messages:
            headers = msgspec.json.encode(message.headers).decode() if message.headers else None
            row = {**asdict(message), "headers": headers, "sender": sender}
            if not await self.messages.insert(tx, message.message_id, row):
                raise stored_already("message", message.message_id)
            rules = self.destinations[message.destination]
            for consumer in rules.deliveries:
                delivery = self._delivery(message.destination, claim, check_at, sender)
                self.pending.put(tx, (message.message_id, consumer), delivery)
        if mark is not None:
            marks = self._database.marks.setdefault(tx, [])
            marks.append(mark)
            tx.add(undo=lambda: marks.remove(mark))
        return []

    def _refused(self, messages: Iterable[Message]) -> Iterator[tuple[int, str, int | None]]:
        for position, each in enumerate(messages, start=1):
            rules = self.destinations.get(each.destination)
            most = None if rules is None else rules.payload_bytes_max
            if most is None or len(each.payload) > most:
                yield position, each.destination, most

    def _delivery(self, name: str, claim: Value, check_at: str | None, sender: str | None) -> Row:
        is_ready, due = check_at is None, after(0.0)
        if check_at is not None:
            due = due.fromisoformat(check_at)
        elif claim is not None:
            due = after(self.destinations[name].resend_seconds)
        return {
            "destination": name, "status": 0 if is_ready else 4, "is_decided": is_ready,
            "asked": None if is_ready else sender or "", "send_count": 0, "check_count": 0,
            "claim_count": int(is_ready and claim is not None), "next_send_at": due,
            "claim_token": UUID(claim) if is_ready and claim is not None else None,
            "topic": None, "partition": None,
            "offset": None, "sent_at": None, "last_error": None,
        }  # fmt: skip

    async def _do_wake(self, tx: SqlTransaction) -> list[Record]:
        tx.add(self._wake)
        return []

    def _wake(self) -> None:
        for hear in list(self._database.listeners.values()):
            virtual_clock().call_soon(hear, context=self._database.context)

    # -- the sweep ---------------------------------------------------------------------------------

    async def _do_destinations(self, tx: SqlTransaction) -> list[Record]:
        rows = [asdict(each) for each in self.destinations.values()]
        return [records(" ".join(row), [row.values()])[0] for row in rows]

    async def _do_now(self, tx: SqlTransaction) -> list[Record]:
        return records("now", [(now(),)])

    async def _do_due(
        self, tx: SqlTransaction, floor: datetime, rows_max: int, statuses: Sequence[int],
        names: Names, shares: Sequence[int], rows_in_all: int,
    ) -> list[Record]:  # fmt: skip
        found: list[Key] = []
        for name in sorted(self.destinations):
            share = dict(zip(names, shares, strict=True)).get(name, rows_max)
            due = self.pending.where(
                tx,
                lambda _, row: (
                    row["destination"] == name  # noqa: B023 - called at once
                    and floor <= row["next_send_at"] <= now()
                    and row["status"] in statuses
                ),
            )
            seen = self.pending.all(tx)
            due.sort(key=lambda key: seen[key]["next_send_at"])
            for key in due:
                if share > 0 and len(found) < rows_in_all and self.pending.try_lock(tx, key):
                    found.append(key)
                    share -= 1
        return records("m c d s sc cc t p o seconds size", [self._due(tx, key) for key in found])

    def _due(self, tx: SqlTransaction, key: Key) -> tuple[Any, ...]:
        row, message = self.pending.all(tx)[key], self.messages.one(tx, key[0])
        names = "destination status send_count claim_count topic partition offset"
        seconds = None if row["sent_at"] is None else (now() - row["sent_at"]).total_seconds()
        size = None if message is None else len(message["payload"])
        return (*key, *map(row.get, names.split()), seconds, size)

    async def _do_progress(self, tx: SqlTransaction) -> list[Record]:
        names = "consumer topic partition offset"
        return records(names, [(*key, row["offset"]) for key, row in self.progress.all(tx).items()])

    async def _do_messages(self, tx: SqlTransaction, ids: Ids, *bounds: UUID) -> list[Record]:
        return self._stored(tx, ids, "message_id destination payload key headers")

    async def _do_claim(
        self, tx: SqlTransaction, ids: Ids, consumers: Names, seconds: Sequence[float], token: UUID
    ) -> list[Changed]:
        given = dict(zip(zip(ids, consumers, strict=True), seconds, strict=True))
        return await self.pending.update(tx, given, lambda key, row: {
            **row, "claim_count": row["claim_count"] + 1, "claim_token": token, "offset": None,
            "next_send_at": after(given[key]),
        })  # fmt: skip

    async def _do_wait(
        self, tx: SqlTransaction, ids: Ids, consumers: Names, seconds: Sequence[float]
    ) -> list[Changed]:
        given = dict(zip(zip(ids, consumers, strict=True), seconds, strict=True))
        wait = lambda key, row: {**row, "next_send_at": after(given[key])}  # noqa: E731
        return await self.pending.update(tx, given, wait)

    async def _do_give_up(
        self, tx: SqlTransaction, ids: Ids, consumers: Names, reasons: Names, sources: Sequence[int]
    ) -> list[Record]:
        given = dict(zip(zip(ids, consumers, strict=True), reasons, strict=True))
        return _abnormal(await self.pending.update(tx, given, lambda key, row: {
            **row, **_GIVEN_UP, "last_error": row["last_error"] or given[key],
        } if row["status"] in sources else None))  # fmt: skip

    async def _do_oldest_unfinished(self, tx: SqlTransaction, open_seconds: float) -> list[Record]:
        young = smallest_id(virtual_clock().wall_ns() / 1e9 - open_seconds)
        return records("id", [(min([young, *(key[0] for key in self.pending.all(tx))]),)])

    # -- outcomes of sends ----------------------------------------------------------------------

    async def _settled(
        self, tx: SqlTransaction, claims: Iterable[tuple[UUID, UUID]], sources: Sequence[int],
        change: Callable[[Key, Row], Row | None],
    ) -> list[Changed]:  # fmt: skip
        """Change what still has its token, and one of the statuses."""
        tokens = dict(claims)
        return await self.pending.update(
            tx,
            self.pending.where(tx, lambda key, _: key[0] in tokens),
            lambda key, row: (
                change(key, row)
                if row["claim_token"] == tokens[key[0]] and row["status"] in sources
                else None
            ),
        )

    async def _do_acknowledged(
        self, tx: SqlTransaction, ids: Ids, tokens: Ids, topics: Names, partitions: Sequence[int],
        offsets: Sequence[int], sources: Sequence[int],
    ) -> list[Record]:  # fmt: skip
        places = dict(zip(ids, zip(topics, partitions, offsets, strict=True), strict=True))
        done = await self._settled(tx, zip(ids, tokens, strict=True), sources, lambda key, row: {
            **row, "status": 1, "send_count": row["send_count"] + 1, **_UNCLAIMED,
            **dict(zip(("topic", "partition", "offset"), places[key[0]], strict=True)),
            "sent_at": now(), "last_error": None,
        } if key[1] else None)  # fmt: skip
        return records("message_id", [each.key[:1] for each in done])

    async def _do_done_by_broker(
        self, tx: SqlTransaction, ids: Ids, tokens: Ids, sources: Sequence[int]
    ) -> list[Record]:
        claims = zip(ids, tokens, strict=True)
        gone = await self._settled(tx, claims, sources, lambda key, _: None if key[1] else GONE)
        await self._finish(tx, gone, 1, lambda row: 1)
        return records("message_id", [each.key[:1] for each in gone])

    async def _do_failed(
        self, tx: SqlTransaction, ids: Ids, tokens: Ids, reasons: Names, sources: Sequence[int]
    ) -> list[Changed]:
        why = dict(zip(ids, reasons, strict=True))
        return await self._settled(tx, zip(ids, tokens, strict=True), sources, lambda key, row: {
            **row, "send_count": row["send_count"] + 1, **_UNCLAIMED, "last_error": why[key[0]],
        })  # fmt: skip

    async def _do_released(
        self, tx: SqlTransaction, ids: Ids, tokens: Ids, reasons: Sequence[str | None],
        sources: Sequence[int],
    ) -> list[Changed]:  # fmt: skip
        why = dict(zip(ids, reasons, strict=True))
        return await self._settled(tx, zip(ids, tokens, strict=True), sources, lambda key, row: {
            **row, **_UNCLAIMED, "next_send_at": now(),
            "last_error": why[key[0]] or row["last_error"],
        })  # fmt: skip

    async def _finish(
        self, tx: SqlTransaction, gone: Sequence[Changed], status: int, more: Callable[[Row], int]
    ) -> None:
        for key, row, _ in gone:
            count = row["send_count"] + more(row)
            done = {"destination": row["destination"], "status": status, "send_count": count}
            if not await self.done.insert(tx, key, done):
                raise stored_already("delivery", key)

    # -- confirms ----------------------------------------------------------------------------------

    async def _do_applied(
        self, tx: SqlTransaction, ids: Ids, consumers: Names, sources: Sequence[int]
    ) -> list[Record]:
        keys = list(zip(ids, consumers, strict=True))
        gone = await self.pending.update(
            tx,
            keys,
            lambda _, row: GONE if row["status"] in sources and row["is_decided"] else None,
        )
        await self._finish(tx, gone, 2, lambda row: int(row["claim_token"] is not None))
        found: dict[tuple[str, str], Counter[int]] = {}
        for key, row, _ in gone:
            found.setdefault((row["destination"], key[1]), Counter())[row["status"]] += 1
        return records(
            "destination consumer consumed early late",
            [(*who, statuses.total(), statuses[0], statuses[3]) for who, statuses in found.items()],
        )

    async def _do_known(self, tx: SqlTransaction, ids: Ids, consumers: Names) -> list[Record]:
        done = self.done.all(tx)
        return records("repeated", [(sum(k in done for k in zip(ids, consumers, strict=True)),)])

    async def _do_retrying(
        self, tx: SqlTransaction, ids: Ids, consumers: Names, untils: Sequence[datetime],
        slack: float, sources: Sequence[int],
    ) -> list[Changed]:  # fmt: skip
        keys = list(zip(ids, consumers, strict=True))
        latest = dict(zip(keys, untils, strict=True))
        return await self.pending.update(tx, keys, lambda key, row: {
            **row, "next_send_at": max(
                row["next_send_at"], min(latest[key], after(7 * 86_400.0)) + (after(slack) - now())
            ),
        } if row["status"] in sources else None)  # fmt: skip

    async def _do_save_progress(self, tx: SqlTransaction, *given: Sequence[Any]) -> list[Record]:
        for *place, offset in zip(*given, strict=True):
            await self.progress.lock(tx, tuple(place))
            self.progress.put(tx, tuple(place), {"offset": offset})
        return []

    async def _do_confirm_key(self, tx: SqlTransaction) -> list[Record]:
        return records("confirm_key", [(self._key,)])

    async def _do_act(
        self, tx: SqlTransaction, ids: Ids | None, destination: str | None, consumer: str | None,
        statuses: Sequence[int] | None, below: UUID | None, rows_max: int, what: str, *_: str,
    ) -> list[Record]:  # fmt: skip
        taken = {"resend": (0, 1), "abandon": (0, 1, 3) if statuses else (3,)}.get(what, (3,))
        keys = self.pending.where(
            tx,
            lambda key, row: (
                (ids is None or key[0] in ids)
                and (below is None or key[0] < below)
                and row["destination"] == (destination or row["destination"])
                and key[1] == (consumer or key[1])
                and row["status"] in (statuses or taken)
                and row["status"] in taken
            ),
        )[:rows_max]
        if what == "abandon":
            gone = await self.pending.update(tx, keys, lambda *_: GONE)
            await self._finish(tx, gone, 6, lambda _: 0)
            return records("message_id consumer status", [(*each.key, 6) for each in gone])
        again = {"check_count": 0, "last_error": None} if what == "retry" else {}
        done = await self.pending.update(tx, keys, lambda _, row: {
            **row, **_UNCLAIMED, "send_count": 0, "next_send_at": now(), "offset": None, **again,
            "status": row["status"] if what == "resend" else 0 if row["is_decided"] else 4,
        })  # fmt: skip
        return records(
            "message_id consumer status", [(*key, row["status"]) for key, _, row in done]
        )

    # -- prepared messages -------------------------------------------------------------------------

    async def _do_claim_checks(
        self, tx: SqlTransaction, last: datetime, token: UUID, again_at: datetime, rows_max: int,
        others: Names, first: datetime,
    ) -> list[Record]:  # fmt: skip
        seen, found = self.pending.all(tx), dict[UUID, tuple[int, str]]()
        due = self.pending.where(
            tx, lambda _, row: row["status"] == 4 and first <= row["next_send_at"] <= last
        )
        due = [key for key in due if seen[key]["asked"] not in others]
        for key in sorted(due, key=lambda key: seen[key]["next_send_at"])[:rows_max]:
            if self.pending.try_lock(tx, key):
                row = seen[key]
                self.pending.put(tx, key, {**row, "claim_token": token, "next_send_at": again_at})
                count = found.get(key[0], (0, ""))[0]
                found[key[0]] = max(count, row["check_count"]), row["asked"]
        return records("message_id check_count sender", [(k, *found[k]) for k in sorted(found)])

    async def _do_ask_again(
        self, tx: SqlTransaction, ids: Ids, counts: Sequence[int], ats: Sequence[datetime],
        reasons: Names, token: UUID,
    ) -> list[Changed]:  # fmt: skip
        given = dict(zip(ids, zip(counts, ats, reasons, strict=True), strict=True))
        names = ("check_count", "next_send_at", "last_error")
        return await self._settled(tx, dict.fromkeys(ids, token).items(), (4,), lambda key, row: {
            **row, "claim_token": None, **dict(zip(names, given[key[0]], strict=True)),
        })  # fmt: skip

    async def _do_checks_used_up(
        self, tx: SqlTransaction, ids: Ids, counts: Sequence[int], token: UUID,
        sources: Sequence[int],
    ) -> list[Record]:  # fmt: skip
        count, claims = dict(zip(ids, counts, strict=True)), dict.fromkeys(ids, token).items()
        done = await self._settled(tx, claims, sources, lambda key, row: {
            **row, "status": 3, "next_send_at": NEVER, "claim_token": None,
            "check_count": count[key[0]],
            "last_error": f"its sender was asked {count[key[0]]} times, and did not know",
        } if not row["is_decided"] else None)  # fmt: skip
        return _abnormal(done)

    async def _decided(
        self, tx: SqlTransaction, ids: Ids, sources: Sequence[int], claim: UUID | None, change: Row
    ) -> list[Changed]:
        def decide(_: Key, row: Row) -> Row | None:
            is_open = row["status"] in sources and not row["is_decided"]
            is_held = claim is None or row["claim_token"] == claim
            return (change and {**row, **change}) if is_open and is_held else None

        return await self.pending.update(
            tx, self.pending.where(tx, lambda key, _: key[0] in ids), decide
        )

    async def _do_committed(
        self, tx: SqlTransaction, ids: Ids, sources: Sequence[int], claim: UUID | None
    ) -> list[Record]:
        ready = {
            "status": 0, "is_decided": True, "asked": None, "send_count": 0, **_UNCLAIMED,
            "next_send_at": now(), "last_error": None,
        }  # fmt: skip
        done = await self._decided(tx, ids, sources, claim, ready)
        return records("message_id", [each.key[:1] for each in done])

    async def _do_rolled_back(
        self, tx: SqlTransaction, ids: Ids, sources: Sequence[int], claim: UUID | None
    ) -> list[Record]:
        gone = await self._decided(tx, ids, sources, claim, GONE)
        await self._finish(tx, gone, 5, lambda _: 0)
        return records("message_id", sorted({each.key[:1] for each in gone}))

    async def _do_standing(self, tx: SqlTransaction, ids: Ids, *bounds: UUID) -> list[Record]:
        rows = []
        for each in ids:
            if (message := self.messages.one(tx, each)) is not None:
                pending, done = (
                    [row for key, row in table.all(tx).items() if key[0] == each]
                    for table in (self.pending, self.done)
                )
                is_decided = all(row["is_decided"] for row in pending)
                statuses = [[row["status"] for row in some] for some in (pending, done)]
                rows.append((each, message["sender"], statuses[0], is_decided, statuses[1]))
        return records("message_id sender pending is_decided done", rows)

    async def _do_stored(self, tx: SqlTransaction, ids: Ids, *bounds: UUID) -> list[Record]:
        return self._stored(tx, ids, "message_id destination key headers payload sender")

    def _stored(self, tx: SqlTransaction, ids: Ids, names: str) -> list[Record]:
        found = [row for each in ids if (row := self.messages.one(tx, each)) is not None]
        return records(names, [[row[name] for name in names.split()] for row in found])

    # -- what only people and the disk see ---------------------------------------------------------

    async def _nothing(self, tx: SqlTransaction, *_: Value) -> list[Record]:
        return []

    _do_heard = _do_save_troubles = _do_end_troubles = _do_unfinished = _do_silent = _nothing
    _do_partitions = _do_trim = _nothing

    async def _do_extend(self, tx: SqlTransaction, *_: Value) -> list[Record]:
        return records("left_out", [(0,)])

    async def _do_measure(self, tx: SqlTransaction, _: Value) -> list[Record]:
        return records("bytes bytes_max", [(0, 0)])


class _CheckedSender:
    """The statements of a sender of mode 5, on the same tables."""

    def __init__(self, tables: SenderTables) -> None:
        self._tables = tables

    def _of(
        self, tx: SqlTransaction, ids: Ids, consumer: str
    ) -> Callable[[Callable[[Row, int, Destination], Row | None]], Any]:
        """Return what changes deliveries by the row, its tries, and its destination."""
        tables, keys = self._tables, [(each, consumer) for each in ids]

        def tried(row: Row) -> int:
            return int(max(row["send_count"], row["claim_token"] is not None))

        return lambda change: tables.pending.update(
            tx,
            keys,
            lambda _, row: change(row, tried(row), tables.destinations[row["destination"]]),
        )

    async def _do_claim(
        self, tx: SqlTransaction, ids: Ids, consumer: str, token: UUID, sources: Sequence[int],
        claims_max: int,
    ) -> list[Record]:  # fmt: skip
        def claim(row: Row, tries: int, rules: Destination) -> Row | None:
            is_open = row["status"] in sources and row["claim_count"] < claims_max
            step = rules.resend_seconds * 2 ** max(row["send_count"], 1)
            return {
                **row, "claim_token": token, "offset": None, "send_count": tries,
                "claim_count": row["claim_count"] + 1 if row["send_count"] else 1,
                "next_send_at": after(min(step, rules.resend_seconds_max)),
            } if is_open and tries < rules.tries_max else None  # fmt: skip

        done = await self._of(tx, ids, consumer)(claim)
        return records("message_id", [each.key[:1] for each in done])

    async def _do_sent(
        self, tx: SqlTransaction, ids: Ids, token: UUID, sources: Sequence[int]
    ) -> list[Changed]:
        claims = dict.fromkeys(ids, token).items()
        return await self._tables._settled(tx, claims, sources, lambda _, row: {
            **row, "send_count": row["send_count"] + 1, **_UNCLAIMED, "last_error": None,
        })  # fmt: skip

    async def _do_give_up(
        self, tx: SqlTransaction, ids: Ids, consumer: str, sources: Sequence[int], claims_max: int
    ) -> list[Record]:
        def give_up(row: Row, tries: int, rules: Destination) -> Row | None:
            is_over = tries >= rules.tries_max or row["claim_count"] >= claims_max
            error = row["last_error"] or "not confirmed after its last try"
            changed = {**row, **_GIVEN_UP, "send_count": tries, "last_error": error}
            return changed if is_over and row["status"] in sources else None

        return _abnormal(await self._of(tx, ids, consumer)(give_up))


class DecisionTables:
    """The decisions of a service that prepares messages, in its own database."""

    def __init__(self, database: OutboxDatabase) -> None:
        self.decisions = Rows(database, "decision")
        database.answer_all(PREPARED, self)

    async def _do_decide(self, tx: SqlTransaction, text: str) -> list[Record]:
        if not await self.decisions.insert(tx, UUID(text), {"is_done": True}):
            row = self.decisions.one(tx, UUID(text))
            found = "done" if row is not None and row["is_done"] else "not done"
            raise stored_already("decision", text, found)
        return records("decided system timeline", [("", "1", "1")])

    async def _do_check_decision(self, tx: SqlTransaction, text: str, wait_ms: int) -> list[Record]:
        found = "unknown"
        with suppress(TimeoutError):
            async with asyncio.timeout(max(wait_ms, 1) / 1_000):
                await self.decisions.insert(tx, UUID(text), {"is_done": False})
                row = self.decisions.one(tx, UUID(text))
                found = "done" if row is not None and row["is_done"] else "not_done"
        return records("found system timeline", [(found, "1", "1")])


_UNCLAIMED: Final[dict[str, Any]] = {"claim_count": 0, "claim_token": None}
_GIVEN_UP: Final = {"status": 3, "next_send_at": NEVER, **_UNCLAIMED}


async def _add_one(connection: MemoryConnection, *fields: Value) -> list[tuple[UUID]]:
    key, headers, message_id = [*fields[2:], None, None, None][:3]
    own = msgspec.json.decode(headers) if isinstance(headers, str) else headers
    given: Any = connection
    return [(await add(given, *fields[:2], key=key, headers=own, message_id=message_id),)]


def _abnormal(changed: Iterable[Changed]) -> list[Record]:
    rows = [
        (*key, row["destination"], row["send_count"], row["last_error"]) for key, _, row in changed
    ]
    return records(ABNORMAL, rows)
