"""What clients, leaders and servers may do.

The engine's cores assemble, know keys and number again, and the store in memory has the fence. What
is done when, and what is lost, is said here.
"""

from __future__ import annotations

from functools import cache, partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from chain_kernel.errors import KeyTooOld, OrderError, RetryError, RowsMissing
from chain_kernel.testing.memory_receiver import MemoryGapSource
from chain_kernel.testing.memory_store import MemoryKeyStore
from sequencer.assembly import Assembler
from sequencer.config import SequencerConfig, SequencerTuning
from sequencer.keys.keeper import KeyKeeper
from sequencer.order import Order, columns_of
from sequencer.submission import Entry
from tests.simulation.wrongs_sequencing import Unproven

from .stored import (
    BATCHES,
    CHAIN_ID,
    KEYS,
    PAYLOAD,
    WINDOW_ROWS,
    Call,
    Calls,
    Log,
    Started,
    chain_of,
    database_of,
    done_now,
    frames_of,
    judge_calls,
    judge_frame,
    last_term,
    term_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from chain_kernel.model import Event
    from chain_kernel.seal import Batch
    from sequencer.order import OrderColumns

    from .explore import Outcomes

CONFIG: Final = SequencerConfig(
    chain_id=CHAIN_ID,
    database="postgresql://memory",
    kafka="memory:9092",
    key_window_rows=WINDOW_ROWS,
    tuning=SequencerTuning(takeover_skip_ids=0),
)
CLOCK: Final[Any] = SimpleNamespace(monotonic_ns=lambda: 0, wall_ns=lambda: 10**9)

UP, FAILED, REPLACED = range(3)
"""Server A answers; does not, and B is its standby; B was promoted, and A has come back."""

Answers = tuple[tuple[int, tuple[tuple[int, int], ...]], ...]
"""Calls, and the places of their orders."""


Assembled = tuple["Batch | None", Answers, tuple[tuple[int, OrderError], ...]]
"""A batch, what callers will hear, and whom it refuses."""


class Bounds(NamedTuple):
    """How small the world is, and what is done wrong in it."""

    terms: int = 3
    crashes: int = 2
    lost_answers: int = 1
    wrongs: frozenset[str] = frozenset()


class Left(NamedTuple):
    """What may still go wrong."""

    crashes: int
    lost_answers: int


class Sent(NamedTuple):
    """A batch whose outcome is not known yet, and what its callers will hear."""

    seal: bytes
    answers: Answers


class Leader(NamedTuple):
    """A process that leads, or believes that it does."""

    base: Log
    """What was stored when it had taken over."""
    tip: bytes
    """The seal after all that it has assembled."""
    sent: tuple[Sent, ...] = ()
    void: tuple[Sent, ...] = ()
    """What was not committed, and is numbered again."""
    queue: tuple[int, ...] = ()
    """Calls."""
    is_cut_off: bool = False
    """Whether its connection broke."""
    keys_of: Log | None = None
    """Where its keys were read, if not where it leads."""

    @property
    def term(self) -> Started:
        return last_term(self.base)

    @property
    def name(self) -> str:
        return f"the leader of term {self.term[0]}"

    @property
    def waiting(self) -> set[int]:
        """The calls that have no answer."""
        return {*self.queue, *(call for sent in self.sent + self.void for call, _ in sent.answers)}


class World(NamedTuple):
    """All that sequences."""

    phase: int = UP
    log: Log = ()
    """On server B, once it was promoted; before, what is replicated of that on A."""
    old: Log = ()
    """On server A."""
    wire: tuple[tuple[Started, bytes], ...] = ()
    """Commits on their way: those of a term stay in their order."""
    calls: Calls = (Call(),) * len(KEYS)
    topic: tuple[tuple[bytes, Log], ...] = ()
    """Frames: batch, and the base of who published it."""
    leaders: tuple[Leader | None, ...] = (None, None)

    @property
    def primary(self) -> str:
        """The server that processes come to; empty for none."""
        return ("A", "", "B")[self.phase]

    def at(self, server: str) -> Log:
        return self.old if server == "A" else self.log

    def stored(self, server: str, entry: Started | bytes, *, is_replicated: bool = True) -> World:
        """Return it after a commit; what is replicated takes along what was not, before."""
        after = (*self.at(server), entry)
        old = after if server == "A" else self.old
        log = after if is_replicated and self.primary == server else self.log
        # An epoch only rises, so the others are refused whenever they arrive.
        wire = tuple(
            sent
            for sent in self.wire
            if sent[1] != entry and (sent[0][0] >= last_term(after)[0] or admits(after, sent[1]))
        )
        return self._replace(old=old, log=log, wire=wire)

    def led(self, at: int, leader: Leader | None) -> World:
        """Return it with another leader; which of two processes it is makes no difference."""
        leaders = [*self.leaders[:at], *self.leaders[at + 1 :], leader]
        leaders.sort(key=lambda each: each.term if each else (0, ""))
        return self._replace(leaders=tuple(leaders))

    def heard(self, status: str, answers: Answers) -> World:
        calls = list(self.calls)
        for number, places in answers:
            calls[number] = Call(status, places)
        return self._replace(calls=tuple(calls))

    def published(self, seal: bytes, base: Log) -> World:
        for record in frames_of(seal, base):
            judge_frame(self.log, record)
        frames = dict.fromkeys([*self.topic, (seal, base)])
        topic = sorted(frames, key=lambda frame: (frame[0], len(frame[1])))
        return self._replace(topic=tuple(topic))

    def judged(self) -> World:
        """Return it as it is. Raises Diverged."""
        log = self.old if self.phase == UP else self.log
        judge_calls(log, chain_of(self.log).last_id, self.calls)
        return self


class Seen(NamedTuple):
    """What receivers see of the world: logs, whether a primary shows them, and the topic."""

    logs: tuple[Log, ...]
    is_primary: bool
    topic: tuple[tuple[bytes, Log], ...]

    @classmethod
    def of(cls, world: World, wrongs: frozenset[str]) -> Seen:
        logs = [world.log]
        if world.phase == FAILED:  # a standby may lag
            logs = [world.log[:end] for end in range(len(world.log), -1, -1)]
        if world.phase == REPLACED and "rows_of_any_primary" in wrongs:
            logs.append(world.old)
        return cls(tuple(logs), world.phase != FAILED, world.topic)

    def sources(self) -> Iterator[MemoryGapSource]:
        for log in self.logs:
            see = partial(chain_of, log)
            yield MemoryGapSource(see, is_primary=self.is_primary, page_rows=1)


class Sequencing:
    """The steps, in a world with these bounds."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._wrongs = bounds.wrongs
        self._assembled = cache(self._assemble)

    def steps(self, world: World, seen: Seen, left: Left) -> Outcomes:
        """Yield all that may happen, and what comes of it."""
        del seen  # it follows from the world
        for said, after, then in self._steps(world, left):
            yield said, (after, Seen.of(after, self._wrongs), then)

    def _steps(self, world: World, left: Left) -> Iterator[tuple[str, World, Left]]:
        for said, after in self._of_servers(world):
            yield said, after.judged(), left
        for at, leader in enumerate(world.leaders):
            go_on = self._take_over(world, at) if leader is None else self._lead(world, at, leader)
            for said, after in go_on:
                yield said, after.judged(), left
            if leader is not None and left.crashes:
                after = world.led(at, None).heard("in doubt", unplaced(leader))
                yield f"{leader.name} crashes", after, left._replace(crashes=left.crashes - 1)
            if leader is not None and left.lost_answers and leader.sent and not leader.is_cut_off:
                for said, after in self._lose(world, at, leader):
                    yield said, after.judged(), left._replace(lost_answers=left.lost_answers - 1)

    # -- servers ----------------------------------------------------------------------------------

    def _of_servers(self, world: World) -> Iterator[tuple[str, World]]:
        for term, seal in {term: (term, seal) for term, seal in reversed(world.wire)}.values():
            name = f"batch {BATCHES[seal].first_id} of term {term[0]}"
            if admits(world.at(term[1]), seal):
                yield f"server {term[1]} commits {name}", world.stored(term[1], seal)
            else:
                rest = tuple(sent for sent in world.wire if sent != (term, seal))
                yield f"server {term[1]} refuses {name}", world._replace(wire=rest)
        if world.phase == UP:
            cut = [leader and leader._replace(is_cut_off=True) for leader in world.leaders]
            failed = world._replace(phase=FAILED, wire=(), leaders=tuple(cut))
            yield "server A fails", failed
            for _, seal in world.wire:
                if admits(world.old, seal):
                    alone = failed._replace(old=(*world.old, seal))
                    yield "server A stores a batch, and fails before B has it", alone
        if world.phase == FAILED:
            yield "server B is promoted, and A comes back", world._replace(phase=REPLACED)

    # -- leaders ----------------------------------------------------------------------------------

    def _take_over(self, world: World, at: int) -> Iterator[tuple[str, World]]:
        for grown, base in self._begun(world):
            for keys_of in self._readable(grown, base):
                leader = Leader(base, chain_of(base).last_seal, keys_of=keys_of)
                where = "" if keys_of is None else ", and reads keys on server A"
                said = f"a process takes over on server {leader.term[1]}: term {leader.term[0]}"
                yield said + where, grown.led(at, leader)

    def _begun(self, world: World) -> Iterator[tuple[World, Log]]:
        """Yield the world after the next take-over, and what is stored then."""
        server = world.primary
        epoch = last_term(world.at(server))[0]
        if server and epoch < self._bounds.terms:
            grown = world.stored(server, (epoch + 1, server))
            yield grown, grown.at(server)

    def _readable(self, world: World, base: Log) -> Iterator[Log | None]:
        """Yield the servers where the keys of a term can be read; None for its own."""
        yield None
        if world.phase == REPLACED:
            try:
                self._keeper("A", world.old, base)
            except RetryError:
                return
            yield world.old

    def _keeper(self, server: str, log: Log, base: Log) -> KeyKeeper:
        database = database_of(server, log)
        if "keys_of_any_primary" in self._wrongs:
            database = Unproven(database)
        keeper = KeyKeeper(MemoryKeyStore(database, CHAIN_ID), CONFIG.key_window_rows)
        done_now(keeper.load(term_of(base)))
        return keeper

    def _lead(self, world: World, at: int, leader: Leader) -> Iterator[tuple[str, World]]:
        yield from self._submit(world, at, leader)
        if leader.is_cut_off:
            yield from self._find_out(world, at, leader)
            return
        for said, after in self._send(world, at, leader):
            yield f"{leader.name} {said}", after
        if leader.sent and (leader.term, leader.sent[0].seal) not in world.wire:
            sent, *others = leader.sent
            if sent.seal in world.at(leader.term[1]):
                after = world.heard("done", sent.answers).judged()
                after = after.published(sent.seal, leader.base).led(
                    at, leader._replace(sent=tuple(others))
                )
                yield f"{leader.name} hears that {shown(sent.answers)}", after
            else:
                yield self._ended(world, at, leader)

    def _submit(self, world: World, at: int, leader: Leader) -> Iterator[tuple[str, World]]:
        """A call is sent at once, unless the outcome of another one is open."""
        number = next((at for at, call in enumerate(world.calls) if not call.status), None)
        if number is None:
            return
        said = f"{leader.name} is given {' and '.join(KEYS[number])}"
        leader = leader._replace(queue=(*leader.queue, number))
        after = world.heard("open", ((number, ()),)).led(at, leader)
        if leader.sent or leader.void or leader.is_cut_off:
            yield said, after
        else:
            place = after.leaders.index(leader)
            for then, sent in self._send(after, place, leader):
                yield f"{said}, and {then}", sent

    def _send(self, world: World, at: int, leader: Leader) -> Iterator[tuple[str, World]]:
        """One batch may follow another whose outcome is open."""
        if len(leader.sent) > 1 or not (leader.queue or leader.void):
            return
        found = self._assembled(leader, world.at(leader.term[1]))
        if found is None:
            return
        batch, answers, refused = found
        for call, error in refused:
            status = "too old" if isinstance(error, KeyTooOld) else "not done"
            world = world.heard(status, ((call, ()),))
        left = {"void": leader.void[1:]} if leader.void else {"queue": ()}
        if batch is None:
            after = world.led(at, leader._replace(**left)).heard("done", answers)
            yield f"answers: {shown(answers) or 'refused'}", after
            return
        BATCHES[batch.seal] = batch
        sent = (*leader.sent, Sent(batch.seal, answers))
        after = world.led(at, leader._replace(sent=sent, tip=batch.seal, **left))
        wire = sorted((*world.wire, (leader.term, batch.seal)), key=lambda each: each[0])
        after = after._replace(wire=tuple(wire))
        if "acknowledged_before_commit" in self._wrongs:
            after = after.heard("done", answers)
        if "published_before_commit" in self._wrongs:
            after = after.published(batch.seal, leader.base)
        yield f"sends batch {batch.first_id}", after

    def _assemble(self, leader: Leader, log: Log) -> Assembled | None:
        """Have the engine assemble what waits; None where that needs an outcome that is open."""
        place = (leader.term[1], log) if leader.keys_of is None else ("A", leader.keys_of)
        keeper, mine = self._keeper(*place, leader.base), own_batches(leader)
        assembler = Assembler(CONFIG, keeper, CLOCK)
        assembler.lead(term_of(leader.base))
        core, memory = assembler._core, keeper.memory
        assert core is not None
        assert memory is not None
        for batch in mine[: len(mine) - len(leader.sent)]:
            keeper.remember(batch, memory.claims_of(_orders(batch)))
        for batch in mine[-1:]:
            core._last_id, core._last_seal = batch.last_id, batch.seal
            core._last_committed_at_us = batch.committed_at_us
        if leader.void:
            batch = core.assemble(_orders(BATCHES[leader.void[0].seal]), CLOCK.wall_ns())
            return batch, _placed(leader.void[0].answers, batch.events), ()
        heard: dict[int, Any] = {}
        entries = [
            Entry([Order(key, PAYLOAD) for key in KEYS[call]], 1, _caller(heard, call))
            for call in leader.queue
        ]
        claims = memory.claims_of(_orders(mine[-1])) if leader.sent else None
        beside: Any = SimpleNamespace(claims=claims) if leader.sent else None
        assembly = assembler.assemble(entries, beside)
        if assembly is None and leader.sent:
            return None
        if assembly is None:
            keys = [key for call in leader.queue for key in KEYS[call]]
            try:
                known = done_now(keeper.rows_with(keys))
            except RowsMissing:
                return None  # it ends, and says so
            assembly = assembler.resolve(entries, known)
        assembly.answer()
        refused = {call: answer for call, answer in heard.items() if isinstance(answer, OrderError)}
        answers = tuple(
            (call, tuple((ack.id, ack.pid) for ack in answer))
            for call, answer in heard.items()
            if call not in refused
        )
        return assembly.batch, answers, tuple(refused.items())

    def _find_out(self, world: World, at: int, leader: Leader) -> Iterator[tuple[str, World]]:
        """It takes over again, and reads back the outcome of what it had sent."""
        if not world.primary:
            return
        read = world.at(world.primary)
        yield from self._read_back(world, at, leader, read)
        if "early_reading_back" in self._wrongs:
            for said, late in self._of_servers(world):
                if late.phase == world.phase:
                    for then, after in self._read_back(late, at, leader, read):
                        yield f"{leader.name} reads back; {said}; {then}", after

    def _read_back(
        self, world: World, at: int, leader: Leader, read: Log
    ) -> Iterator[tuple[str, World]]:
        is_ours = last_term(world.at(world.primary)) == leader.term
        looked_for = leader.sent
        if "blind_retry" in self._wrongs:
            looked_for = ()
        if "sent_ahead_and_forgotten" in self._wrongs:
            looked_for = leader.sent[:1]
        found = [sent for sent in looked_for if sent.seal in read]
        world = world.heard("done", tuple(answer for sent in found for answer in sent.answers))
        others = [sent for sent in leader.sent if sent not in found]
        leader = leader._replace(sent=(), void=(*others, *leader.void))
        if not is_ours:
            yield self._ended(world, at, leader)
            return
        for grown, base in self._begun(world):
            after = Leader(base, chain_of(base).last_seal, void=leader.void, queue=leader.queue)
            for sent in found:
                grown = grown.published(sent.seal, base)
            where = f"on server {world.primary}: term {after.term[0]}"
            yield f"{leader.name} takes over again {where}", grown.led(at, after)

    def _ended(self, world: World, at: int, leader: Leader) -> tuple[str, World]:
        """It is fenced: none of its callers' orders is committed, nor will be."""
        after = world.led(at, None).heard("not done", unplaced(leader))
        return f"{leader.name} finds that it was fenced", after

    def _lose(self, world: World, at: int, leader: Leader) -> Iterator[tuple[str, World]]:
        lost = leader._replace(is_cut_off=True)
        yield f"{leader.name} loses its connection", world.led(at, lost)
        first = leader.sent[0].seal
        if world.phase == UP and (leader.term, first) in world.wire and admits(world.old, first):
            alone = world.stored("A", first, is_replicated=False)
            taken = leader if "warning_taken_for_success" in self._wrongs else lost
            yield f"a batch of {leader.name} is stored, not replicated", alone.led(at, taken)


def admits(log: Log, seal: bytes) -> bool:
    return chain_of(log).admits(BATCHES[seal])


def own_batches(leader: Leader) -> list[Batch]:
    """Return what a leader has assembled in its term, oldest first."""
    found, at, end = [], leader.tip, chain_of(leader.base).last_seal
    while at != end:
        found.append(BATCHES[at])
        at = BATCHES[at].seal_before
    return found[::-1]


def unplaced(leader: Leader) -> Answers:
    return tuple((call, ()) for call in leader.waiting)


def shown(answers: Answers) -> str:
    return ", ".join(
        f"{key} is row {place[0]}"
        for call, places in answers
        for key, place in zip(KEYS[call], places, strict=True)
    )


def _orders(batch: Batch) -> OrderColumns:
    return columns_of([Order(key, PAYLOAD) for key in batch.columns.keys])


def _placed(answers: Answers, rows: Iterable[Event]) -> Answers:
    """Return the answers with the places of `rows`, as far as they have the keys."""
    places = {row.key: (row.id, row.pid) for row in rows}
    return tuple(
        (call, tuple(places.get(key, old) for key, old in zip(KEYS[call], before, strict=True)))
        for call, before in answers
    )


def _caller(heard: dict[int, Any], call: int) -> Any:
    """Return what stands in for the future of a caller."""
    hear = partial(heard.__setitem__, call)
    return SimpleNamespace(done=lambda: call in heard, set_result=hear, set_exception=hear)
