"""The place of a receiver: how far its caller has come, and what is stored of that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matcher_receiver.worked_off import WorkedOff
from orderchain.errors import RowsMissing, SettingError

if TYPE_CHECKING:
    from orderchain.mark import Mark
    from orderchain.ports import CheckpointStore, HeadReports
    from orderchain.run import Run


class Place:
    """Moves the checkpoint behind what was delivered, by compare-and-set."""

    def __init__(
        self,
        store: CheckpointStore | None,
        start: Mark,
        stored: Mark | None,
        reports: HeadReports | None = None,
    ) -> None:
        self._store = store
        self._reports = reports
        self._report(start)
        self._start_id = start.id
        self.delivered = start
        """Behind the last row that was handed on. Its id never falls."""
        # Where a snapshot or the caller's own place is another one, the checkpoint stays where it
        # is until the receiver has come past it.
        self._saved = stored or start
        self._saved_from = self._saved.id
        self._is_saved_by_caller = False
        self._in_callers_hands = start.id
        self.worked_off = WorkedOff(start.id)
        """What waits for rows to be worked off; see `Receiver.until_delivered`."""

    def come_back(self) -> None:
        """Note that the caller asks for more, and so is done with what it had before.

        Where a place is kept, its word for that is a checkpoint: it may collect runs. One that was
        stored in its own transaction has been committed by now.
        """
        done = self._in_callers_hands if self._is_kept else self.delivered.id
        self.worked_off.rise(done)

    def deliver(self, run: Run) -> None:
        """Note that `run` is handed on now.

        Raises RowsMissing for one that does not link to the one before: that never happens, and if
        it did, the checkpoint must not pass what was not handed on.
        """
        if run.first_pid != self.delivered.id:
            raise RowsMissing(run.chain_id, self.delivered.id, run.first_pid)
        self.delivered = run.end

    async def save(self, run: Run, connection: object | None) -> None:
        """Store that everything up to the end of `run` was worked on; see `Receiver.checkpoint`."""
        if not self._is_kept:
            raise SettingError("checkpoints", None, "a store, to keep a checkpoint in")
        self._refuse_foreign(run)
        # Whether the caller's transaction was committed is not ours to see: the same run again
        # means that it was not, and stands where it stood.
        is_repeat = run.last_id == self._saved.id and self._is_saved_by_caller
        if run.last_id > self._saved.id or is_repeat:
            await self._save(run, connection, is_repeat=is_repeat)
        self._note_worked_off(run.last_id, connection)

    async def _save(self, run: Run, connection: object | None, *, is_repeat: bool) -> None:
        first_pid = self._saved_from if is_repeat else self._saved.id
        if self._store is not None:
            await self._store.save(first_pid, run.end, connection)
        if connection is None:
            self._report(run.end)
        elif not is_repeat:
            self._report(self._saved)  # the caller has come past it, so that one was committed
        self._saved, self._saved_from = run.end, first_pid
        self._is_saved_by_caller = connection is not None

    def _note_worked_off(self, row_id: int, connection: object | None) -> None:
        if connection is None:
            self.worked_off.rise(row_id)
        elif row_id > self._in_callers_hands:
            # Nobody else sees the effect before the caller's transaction ends. The one before has.
            self.worked_off.rise(self._in_callers_hands)
            self._in_callers_hands = row_id

    def _refuse_foreign(self, run: Run) -> None:
        """Refuse a run that was not handed on here. Raises SettingError."""
        if run.last_id > self.delivered.id:
            raise SettingError("run", run.last_id, f"a run up to {self.delivered.id}")
        if run.last_id > self._saved.id and run.first_pid < self._start_id:
            raise SettingError("run", run.first_pid, f"a run after {self._start_id}")

    @property
    def _is_kept(self) -> bool:
        return self._store is not None or self._reports is not None

    def _report(self, done: Mark) -> None:
        if self._reports is not None:
            self._reports.report(done)

    def must_save(self, run: Run) -> bool:
        """Say whether there is a store, or are reports, that do not know of `run` yet."""
        return self._is_kept and run.last_id > self._saved.id
