"""A callback service's table in memory: what `outbox/sql/callback_queries.sql` says of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from chain_kernel.sql import load_sql
from outbox.testing.servers.sql import GONE, NEVER, Record, Rows, records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime
    from uuid import UUID

    from chain_kernel.testing.memory_sql import SqlTransaction
    from outbox.testing.servers.sql import Changed, Key, OutboxDatabase, Row

    Ids = Sequence[UUID]
    Names = Sequence[str]

SQL: Final = load_sql("outbox", "sql/callback_queries.sql")

NEW: Final[Row] = {
    "sender": None, "state": 0, "due_at": NEVER, "ask_count": 0, "claim_token": None, "proof": None,
}  # fmt: skip


class CallbackTables:
    """By message and consumer."""

    def __init__(self, database: OutboxDatabase) -> None:
        self.deliveries = Rows(database, "delivery")
        self.read = Rows(database, "read")
        database.answer_all(SQL, self)

    async def _merge(
        self, tx: SqlTransaction, key: Key, new: Row, known: Callable[[Key, Row], Row | None]
    ) -> None:
        if not await self.deliveries.insert(tx, key, {**NEW, **new}):
            await self.deliveries.update(tx, [key], known)

    async def _do_version(self, tx: SqlTransaction) -> list[Record]:
        return records("version upgrade_to", [(1, None)])

    async def _do_add_checks(
        self, tx: SqlTransaction, ids: Ids, consumers: Names, sender: str, due_at: datetime,
        return_at: datetime,
    ) -> list[Record]:  # fmt: skip
        for key in ((each, consumer) for each in ids for consumer in consumers):
            await self._merge(tx, key, {"sender": sender, "due_at": due_at}, lambda _, row: {
                **row, "sender": sender,
                "due_at": return_at if row["state"] else max(row["due_at"], due_at),
            } if row["sender"] is None else None)  # fmt: skip
        return []

    async def _do_add_confirms(
        self, tx: SqlTransaction, ids: Ids, consumers: Names, _: datetime, return_at: datetime,
        proofs: Sequence[bytes],
    ) -> list[Record]:  # fmt: skip
        for *key, proof in zip(ids, consumers, proofs, strict=True):
            await self._merge(tx, tuple(key), {"state": 1, "proof": proof}, lambda _, row: {
                **row, "state": 1, "proof": proof, "claim_token": None,  # noqa: B023 - at once
                "due_at": NEVER if row["sender"] is None else return_at,
            } if row["state"] in (0, 3) or (row["state"] == 1 and row["proof"] != proof) else None)  # noqa: B023  # fmt: skip
        return []

    async def _do_postpone(
        self, tx: SqlTransaction, ids: Ids, consumers: Names, untils: Sequence[datetime]
    ) -> list[Record]:
        for *key, until in zip(ids, consumers, untils, strict=True):
            await self._merge(tx, tuple(key), {"due_at": until}, lambda _, row: {
                **row, "due_at": max(row["due_at"], until), "claim_token": None,  # noqa: B023
            } if row["state"] == 0 else None)  # fmt: skip
        return []

    async def _do_read_until(
        self, tx: SqlTransaction, topics: Names, numbers: Sequence[int], untils: Sequence[datetime]
    ) -> list[Record]:
        for *key, until in zip(topics, numbers, untils, strict=True):
            if not await self.read.insert(tx, tuple(key), {"until": until}):
                await self.read.update(
                    tx,
                    [tuple(key)],
                    lambda _, row: {"until": until} if row["until"] < until else None,  # noqa: B023
                )
        return []

    def _due(self, tx: SqlTransaction, at: datetime, state: int) -> list[tuple[Key, Row]]:
        rows = self.deliveries.all(tx).items()
        due = [
            (key, row) for key, row in rows if row["state"] == state and row["due_at"] <= at < NEVER
        ]
        return sorted(due, key=lambda each: each[1]["due_at"])

    async def _do_senders(self, tx: SqlTransaction, at: datetime, state: int) -> list[Record]:
        senders = {row["sender"] for _, row in self._due(tx, at, state)} - {None}
        return records("sender", [(each,) for each in sorted(senders)])

    async def _do_claim(
        self, tx: SqlTransaction, at: datetime, state: int, token: UUID, until: datetime,
        rows_max: int, topics: Names, sender: str,
    ) -> list[Record]:  # fmt: skip
        read = [row["until"] for key, row in self.read.all(tx).items() if key[0] in topics]
        taken: list[tuple[object, ...]] = []
        for key, row in self._due(tx, at, state):
            is_read = state != 0 or (read and row["due_at"] <= min(read))
            is_ours = row["sender"] == sender and is_read and len(taken) < rows_max
            if is_ours and self.deliveries.try_lock(tx, key):
                self.deliveries.put(tx, key, {**row, "claim_token": token, "due_at": until})
                taken.append((*key, row["ask_count"], row["proof"]))
        return records("message_id consumer ask_count proof", taken)

    async def _held(
        self, tx: SqlTransaction, keys: Iterable[Key], token: UUID, state: int,
        change: Callable[[Key], Row],
    ) -> list[Changed]:  # fmt: skip
        return await self.deliveries.update(tx, list(keys), lambda key, row: {
            **row, "claim_token": None, **change(key),
        } if row["claim_token"] == token and row["state"] == state else None)  # fmt: skip

    async def _do_asked(
        self, tx: SqlTransaction, ids: Ids, consumers: Names, ends: Sequence[bool],
        counts: Sequence[int], dues: Sequence[datetime], _: Names, token: UUID,
    ) -> list[Changed]:  # fmt: skip
        given = dict(
            zip(zip(ids, consumers, strict=True), zip(ends, counts, dues, strict=True), strict=True)
        )
        return await self._held(tx, given, token, 0, lambda key: {
            "state": 3 if given[key][0] else 0, "ask_count": given[key][1],
            "due_at": NEVER if given[key][0] else given[key][2],
        })  # fmt: skip

    async def _do_returned(
        self, tx: SqlTransaction, ids: Ids, consumers: Names, token: UUID
    ) -> list[Changed]:
        keys = zip(ids, consumers, strict=True)
        return await self._held(tx, keys, token, 1, lambda _: {"state": 2, "due_at": NEVER})

    async def _do_refused(
        self, tx: SqlTransaction, ids: Ids, consumers: Names, token: UUID, at: datetime
    ) -> list[Changed]:
        keys, refused = zip(ids, consumers, strict=True), {"state": 0, "due_at": at, "proof": None}
        return await self._held(tx, keys, token, 1, lambda _: refused)

    async def _do_not_returned(
        self, tx: SqlTransaction, ids: Ids, consumers: Names, token: UUID, at: datetime, _: str
    ) -> list[Changed]:
        keys = zip(ids, consumers, strict=True)
        return await self._held(tx, keys, token, 1, lambda _: {"due_at": at})

    async def _do_trim(
        self, tx: SqlTransaction, below: UUID, _: int, unknown: Names
    ) -> list[Record]:
        gone = self.deliveries.where(
            tx,
            lambda key, row: (
                key[0] < below and (row["due_at"] == NEVER or row["sender"] in (None, *unknown))
            ),
        )
        lost = [self.deliveries.one(tx, key) or NEW for key in gone]
        count = sum(row["sender"] is not None and row["due_at"] < NEVER for row in lost)
        await self.deliveries.update(tx, gone, lambda *_: GONE)
        return records("rows unasked", [(len(gone), count)])
