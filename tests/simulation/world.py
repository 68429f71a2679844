"""One simulated world: a database, a broker, programs, clients, and what befalls them."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from hashlib import sha256
from itertools import count
from random import Random
from typing import TYPE_CHECKING

import msgspec

from chain_kernel.errors import Fenced
from chain_kernel.testing.memory_chain import LinkDial
from chain_kernel.testing.memory_receiver import MemoryReplica
from chain_kernel.testing.memory_store import MemoryDatabase
from chain_kernel.testing.virtual_loop import virtual_clock
from tests.doubles.hosts import Host, Hosts
from tests.doubles.wire import Dial, Wire, WiredServer
from tests.judge.judge import Judge
from tests.judge.rules import Diverged

from .client import Client
from .fail_over import lose_standby
from .faults import befall, later
from .hosts import Leader, Program, SequencerHost
from .mad_frames import mad_frames
from .memory import MemoryWatch, small_bounds
from .orders_topic import OrdersTopic
from .pairs import begin_pair
from .plan import CHAIN_ID, Plan
from .receiver_host import ReceiverHost
from .seeds import live_through
from .seen import SeenChain, SeenLog
from .watch import LeadWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable
    from typing import Any

    from chain_kernel.errors import GapError, HaltError, TopicError
    from chain_kernel.testing.virtual_loop import Process
    from tests.judge.rules import Model

SERVED_SECONDS = 20.0
"""In so long after the last fault every client has an answer to everything (G15: a lease, a
take-over, and the longest back-off of a leader that waits for its database)."""

LED_SECONDS = 8.0
"""While the database is well, no leader is missing for longer (G15). A lease and 15 s are promised
for a lease of five; a world's is one, and its longest back-off is the real one."""

PAIRS_BEGIN_SHARE = 0.7
"""Pairs begin in this part of the time with faults, so that most of both comes before its end."""

DELIVERED_SECONDS = 5.0
"""In so long after that every committed row is delivered (G14): `poll_after_seconds`, the longest
back-off of a receiver, and a standby's lag; the same with Kafka gone."""

STOPPED_SECONDS = 6.0
"""In so long everything has stopped that is asked to, whatever is away (G17): the stops of an
intake and of a sequencer, and the questions that are under way."""

REPLAY_SECONDS_MAX = 1.0
PROMOTED_SEEDS = 2**64
"""Added for each server: no two of them draw a nonce twice."""
SHOWN_LINES = 60


def ignore(*_: object) -> None:
    """Look at nothing."""


class World:
    """Everything of one seed."""

    def __init__(self, plan: Plan, *, without_faults: Collection[int] = ()) -> None:
        """`without_faults`: by number."""
        self.plan = plan
        self.without_faults = without_faults
        self.loop = virtual_clock()
        self.random = Random(plan.seed)
        self.trace: deque[str] = deque(maxlen=SHOWN_LINES)
        self.failures: list[str] = []
        self.is_healed = False
        self.is_standby_stuck = False
        self.at_take_over: list[Callable[[], None]] = []
        """What befalls the next one who takes over."""
        self.steps = 0
        """Taken by the loop until the story was over; what ends behind it ends in any order."""
        self.processes: list[Process] = []
        self._make_database()
        self._make_broker()
        self.sequencers = [SequencerHost(self, f"sequencer {n}") for n in range(plan.sequencers)]
        self.receivers = [ReceiverHost(self, f"receiver {n}") for n in range(plan.receivers)]
        self.leaders: list[Leader] = []
        self.clients = [Client(self, n) for n in range(plan.clients)]
        self.lead_watch = LeadWatch(self, LED_SECONDS)

    def _make_database(self) -> None:
        plan = self.plan
        self.database = MemoryDatabase(plan.seed)
        self.judge = Judge(
            self.database.database_id.bytes, CHAIN_ID,
            has_wrong_frames=plan.wrong_seals > 0, clock=self.loop.time,
        )  # fmt: skip
        self.orders = OrdersTopic(plan, self.random, self.judge)
        self.chain = self._make_chain()
        self.replica = MemoryReplica(self.database, CHAIN_ID)
        self.database_server = WiredServer("database")
        self.hosts = Hosts(Host(self.database, self.database_server), self.random)
        self.standby_server = WiredServer("standby")
        self.database_dial = self._dial(plan.database_loss)
        self.commit_dial = self._dial(plan.commit_loss)

    def _make_chain(self) -> SeenChain:
        """Return the chain of the primary, every commit of which is looked at."""
        chain = SeenChain(CHAIN_ID, self.database.database_id, self.plan.partition_ids)
        chain.judge = self.judge
        chain.watch_intake = self.orders.check
        chain.watch_term = self._on_term
        self.database.chains[CHAIN_ID] = chain
        self.notices = self.database.notices[CHAIN_ID] = SeenLog(self.judge)
        return chain

    @property
    def frames(self) -> SeenLog:
        """Where leaders send frames: the topic, or the notifications of the primary."""
        return self.log if self.plan.has_broker else self.notices

    def promote(self) -> None:
        """Have the synchronous standby be the primary, with all that was ever acknowledged.

        What comes to the old one from now on is of no chain, and is acknowledged to nobody.
        """
        old, server = self.chain, self.database.server
        old.judge, old.watch_intake, old.watch_term = None, ignore, ignore
        self.notices.judge = None
        self.database = MemoryDatabase(self.plan.seed + server.timeline * PROMOTED_SEEDS)
        self.database.database_id = old.database_id
        self.database.server = msgspec.structs.replace(server, timeline=server.timeline + 1)
        self.chain = self._make_chain()
        self.chain.replay(old)
        self.chain.replicated_id = self.chain.last_id
        self.chain.checkpoints = old.checkpoints  # a receiver of an old connection has none else
        self.replica.database = self.database
        self.database_server = WiredServer(f"promoted {server.timeline}")
        self.hosts.add(Host(self.database, self.database_server))

    def _dial(self, loss: float) -> Dial:
        """Draw what most of a loss is: another thing in each world."""
        weights = [self.random.random() ** 2 for _ in range(4)]
        refused, question_lost, answer_lost, late = (loss * w / sum(weights) for w in weights)
        return Dial(
            refused=refused, question_lost=question_lost, answer_lost=answer_lost, late=late
        )

    def _make_broker(self) -> None:
        lost = self.plan.link_loss / 2
        self.log = SeenLog(self.judge)
        self.broker_server = WiredServer("broker")
        self.broker_dial = self._dial(self.plan.broker_loss)
        self.link_dial = LinkDial(lost=lost, repeated=lost / 2, held=lost / 2, broken=lost / 4)

    def database_wire(self) -> Wire:
        return Wire(self.database_server, self.database_dial, self.random)

    def standby_wire(self) -> Wire:
        return Wire(self.standby_server, self.database_dial, self.random)

    def commit_wire(self) -> Wire:
        return Wire(self.database_server, self.commit_dial, self.random)

    def broker_wire(self) -> Wire:
        return Wire(self.broker_server, self.broker_dial, self.random)

    @property
    def models(self) -> Iterable[Model]:
        return self.judge.models

    @property
    def successions(self) -> Collection[tuple[str, str]]:
        return self.judge.successions

    @property
    def oldest_epoch(self) -> int:
        """That of the first primary, which may have been replaced before it heard of a leader."""
        return self.hosts.first.database.chains[CHAIN_ID].epoch

    @property
    def is_database_well(self) -> bool:
        """Whether it answers those who ask, and commits."""
        is_there = not (self.database_server.is_away or self.database_server.is_held)
        wires_are_sound = self.database_dial.is_sound and self.commit_dial.is_sound
        return is_there and wires_are_sound and not self.database.cancels_waits

    def _on_term(self) -> None:
        for host in self.sequencers:
            host.on_term(self.chain.owner)
        befalling, self.at_take_over = self.at_take_over, []
        for begin in befalling:
            begin()

    def note(self, *what: object) -> None:
        """Add a line to the story."""
        self.trace.append(f"{self.loop.time() - 1_000:9.4f} {' '.join(map(str, what))}")

    def fail(self, what: str) -> None:
        self.failures.append(what)

    def on_halt(self, name: str, error: HaltError) -> None:
        """G8: no frame, no standby and no crash makes anybody halt."""
        self.fail(f"G8 {name} halted: {error!r}")

    def on_end(self, name: str, error: Exception) -> None:
        """Another one is what fences a leader, and never an earlier try of its own."""
        if isinstance(error, Fenced) and self.chain.owner == name:
            self.fail(f"G15 {name} fenced itself: {error!r}")

    def on_end_of_start(self, name: str, error: Exception, seconds: float) -> None:
        """What a take-over has begun goes on for as long as an outage may last."""
        self.fail(f"G15 {name} gave up {seconds:.1f} s after its take-over: {error!r}")

    def on_topic_error(self, name: str, error: TopicError, *, was_led: bool) -> None:
        """A chain that was led goes on without its topic, and so do its receivers.

        The first term may begin between the look of a start and its question to the broker, and a
        start may look at an old primary that knows of none.
        """
        if self.oldest_epoch > 0 and (was_led or self.chain.epoch > 1):
            self.fail(f"G15 {name} ended for its topic: {error!r}")

    def on_rows_missing(self, name: str, error: GapError) -> None:
        """Nothing is ever missing: what a frame names was committed before it was sent."""
        self.fail(f"{name} found rows missing: {error!r}")

    async def guarded(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do `work`; an end that was not foreseen fails the seed."""
        try:
            await work()
        except Exception as error:
            self.fail(repr(error))
            raise

    def end(self) -> None:
        """Kill whatever still runs, or only seems dead."""
        for process in self.processes:
            process.kill()

    async def live(self) -> None:
        """Faults, healing, the end; every step under the eyes of the judge."""
        hosts: list[Program] = [*self.sequencers, *self.receivers]
        for host in hosts:
            host.start()
        calling = [asyncio.ensure_future(self.guarded(c.live)) for c in self.clients]
        calling.append(asyncio.ensure_future(self.guarded(self.orders.live)))
        replaying = asyncio.ensure_future(self._replay())
        watching = [
            asyncio.ensure_future(self.guarded(watch.live))
            for watch in (MemoryWatch(self), self.lead_watch)
        ]
        await self._break_things()
        self._heal()
        await self._until(lambda: all(task.done() for task in calling), SERVED_SECONDS, "G15 calls")
        self.orders.add_last()
        last_calls = [asyncio.ensure_future(self.guarded(c.last_call)) for c in self.clients]
        await self._until(
            lambda: all(task.done() for task in last_calls), SERVED_SECONDS, "G15 last"
        )
        await self._until(self._is_taken, SERVED_SECONDS, "G15 intake")
        await self._until(self._is_delivered, DELIVERED_SECONDS, "G14 delivered")
        for watch in watching:
            watch.cancel()
        await self._stop(hosts)
        replaying.cancel()
        chain = self.chain
        self.judge.saw("stored_head", chain.last_id, chain.last_seal, chain.epoch)
        self.judge.saw("published", chain.published_id, chain.skips)
        self.judge.saw("over")
        self.steps = self.loop.steps

    async def _stop(self, hosts: list[Program]) -> None:
        """G17: whatever is away, what is asked to stop does."""
        down = self.plan.down_at_stop
        self.note("asked to stop, away:", down)
        is_database_away = down in {"database", "everything"}
        self.database_server.is_away = self.standby_server.is_away = is_database_away
        if down in {"broker", "everything"}:
            self.log.is_away = self.orders.topic.is_away = True
        for host in hosts:
            host.stop()
        await self._until(lambda: all(host.is_over for host in hosts), STOPPED_SECONDS, "G17 stop")

    def digest(self) -> str:
        """Return a value that two runs of one seed share, whatever machine they ran on."""
        shown = [*self.trace, *map(repr, self.judge.fence.rows), str(self.steps)]
        return sha256("\n".join(shown).encode()).hexdigest()

    def check(self) -> None:
        """Raise the first violation, or what else went wrong."""
        if self.judge.divergence is not None:
            raise self.judge.divergence
        if self.failures:
            raise AssertionError(self.failures[0])

    def _is_taken(self) -> bool:
        return self.orders.is_taken(self.chain.intake)

    def _is_delivered(self) -> bool:
        rows = len(self.judge.fence.rows)
        return all(self.judge.effects.done.get(each.name, 0) == rows for each in self.receivers)

    async def _until(self, is_so: Callable[[], bool], seconds: float, what: str) -> None:
        deadline = self.loop.time() + seconds
        while not is_so():
            self.check()
            if self.loop.time() > deadline:
                raise Diverged(what, f"not within {seconds} s")
            await asyncio.sleep(0.1)
        self.check()

    async def _replay(self) -> None:
        while True:
            await asyncio.sleep(self.random.uniform(0.0, REPLAY_SECONDS_MAX))
            if not self.is_standby_stuck:
                self.replica.replay()

    async def _break_things(self) -> None:
        end = self.loop.time() + self.plan.fault_seconds
        pairs_seconds = self.plan.fault_seconds * PAIRS_BEGIN_SHARE
        for name in self.plan.pairs:
            later(self, pairs_seconds, partial(begin_pair, self, name))
        if self.plan.old_primary != "never replaced":
            later(self, pairs_seconds, partial(lose_standby, self))
        rate = self.plan.faults_per_second
        for number in count(1):
            pause = self.random.expovariate(rate) if rate else self.plan.fault_seconds
            left = end - self.loop.time()
            await asyncio.sleep(min(pause, left))
            self.check()
            if pause >= left:
                return
            if number not in self.without_faults:
                befall(self)

    def break_broker(self, how: str) -> None:
        """Have the broker refuse, give no answer, or be without the topic; not once all healed."""
        if self.is_healed:
            return
        self.note("broker", how)
        if how == "is_silent":
            self.broker_server.is_silent = True
        elif how == "is_gone":
            self.log.delete()
        else:
            self.log.is_away = True

    def heal_broker(self) -> None:
        """Have it back, unless it is to stay as it is in the end."""
        end = self.plan.broker_in_the_end
        # A chain that was never led may need it.
        is_spoiled = self.is_healed and self.chain.epoch > 0
        self.broker_server.is_silent = False
        self.log.is_away = is_spoiled and end == "away"
        if is_spoiled and end == "without the topic":
            self.log.delete()
        else:
            self.log.is_gone = False

    def heal_database(self) -> None:
        self.database_server.is_away = False
        self.database_server.let_go()

    def _heal(self) -> None:
        self.note("everything heals")
        self.is_healed = True
        self.at_take_over.clear()
        for dial in (self.database_dial, self.commit_dial, self.broker_dial, self.link_dial):
            dial.heal()
        self.heal_database()
        self.heal_broker()
        self.standby_server.is_away = False
        self.orders.topic.is_away = False
        self.database.cancels_waits = False
        for process in self.processes:
            process.resume()
        for host in (*self.sequencers, *self.receivers):
            host.restart()


def simulate(seed: int, *, without_faults: Collection[int] = (), **changes: Any) -> World:
    """Live through the world of `seed`, with `changes` to its plan; the rest is as of a World.

    Raises SeedFailed.
    """
    plan = msgspec.structs.replace(Plan.draw(seed), **changes)
    if without_faults:
        changes = {**changes, "without_faults": tuple(without_faults)}
    return live_through(
        plan,
        lambda: World(plan, without_faults=without_faults),
        changes,
        simulate,
        small_bounds(plan),
        mad_frames(plan),
    )
