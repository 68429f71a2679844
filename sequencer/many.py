"""Many chains in one process: they share its connections to the database, and a producer."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager, suppress
from itertools import cycle
from typing import TYPE_CHECKING, Final, Self

from msgspec.structs import replace

from chain_kernel.clients.database_config import DatabaseConfig
from chain_kernel.clients.postgres_errors import is_too_many_connections
from chain_kernel.clients.session import ClosedAtExit
from chain_kernel.clock import SystemClock
from chain_kernel.doors import needs_extra
from chain_kernel.errors import SettingError
from chain_kernel.process import calm_collector
from chain_kernel.tasks import HomeLoop, uninterrupted
from chain_kernel.text import SummedLog
from sequencer.leadership import PostgresLease
from sequencer.service import Sequencer, sink_of
from sequencer.stores.keys import PostgresKeyStore
from sequencer.stores.postgres import PostgresChainStore
from sequencer.stores.session import CommitLine, NewestServer, SideSessions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from sequencer.config import SequencerConfig, TopicIntakeConfig
    from sequencer.intake.joint import JointConsumers
    from sequencer.intake.topic import TopicIntake, TopicIntakeStats
    from sequencer.stores.shared_producer import SharedProducer

_log = logging.getLogger(__name__)

COMMIT_CONNECTIONS: Final = 12
"""For commits, by default at least: four processes with their leases and keys hold 56 in all."""

_CHAINS_PER_CONNECTION: Final = 32
"""And at most so many chains take turns there. Where the machine is short, a turn takes 40 ms: the
orders of 1,000 chains, 200 a second, came 5 to 20 s late over twelve connections."""

TAKE_OVERS_AT_ONCE: Final = 8
"""More would delay the beats of the chains that are led, and so make more take-overs."""

HEARTBEATS_PER_SECOND: Final = 1_500
"""For all chains together: more would cost a leader of a thousand idle chains half a core. A
receiver asks the database after a silence of 1 s."""

_WHOSE_CHARACTERS_MAX: Final = 40
"""PostgreSQL cuts the name of an application at 63."""


def commit_connections(chains: int) -> int:
    """Return how many connections a process with so many chains has for commits, by default."""
    return max(COMMIT_CONNECTIONS, -(-chains // _CHAINS_PER_CONNECTION))


class SharedConnections(ClosedAtExit):
    """The connections of a process that leads many chains: some for commits, two for the rest.

    A chain commits over the same one each time, and takes turns with the others there. Looks and
    beats of all chains are one statement each. A chain that waits for a lock of its row gives the
    connection back, and tries again. An error ends a connection for all that use it: each of them
    takes over again on the next, which costs an epoch. So no more than that happens when one of
    them is fenced, or cancelled in mid-commit. Small frames of all go over one producer, and a
    consumer reads the topics of several.
    """

    def __init__(self, configs: Sequence[SequencerConfig], connections: int | None = None) -> None:
        """Share `connections` for commits, by default `commit_connections`, and two more.

        Raises:
            SettingError: the configs have more than one database, or other deadlines for it.
        """
        if connections is None:
            connections = commit_connections(len(configs))
        first = _checked(configs, connections)
        self._home = HomeLoop("shared connections")
        self._clock = SystemClock()
        self._chains = len(configs)
        self._asks_each = DatabaseConfig.of(first.database).for_writing().may_move
        whose = _whose(sorted(config.chain_id for config in configs))
        newest = NewestServer(first, self._clock, whose, self._note)
        self._lines = [
            CommitLine(first, self._clock, whose, self._note, newest)
            for _ in range(min(connections, len(configs)))
        ]
        self._lease = SideSessions(first, "lease", whose, self._note)
        self._keys = SideSessions(first, "keys", whose, self._note)
        self._producer = _producer_of(configs)
        self._joint: JointConsumers | None = None
        self._turns = asyncio.Semaphore(TAKE_OVERS_AT_ONCE)
        self._line_of = dict(zip((each.chain_id for each in configs), cycle(self._lines)))
        self._outage = SummedLog(_log, logging.WARNING)

    async def __aenter__(self) -> Self:
        """Open the first connection; raises as a sequencer that starts."""
        self._home.join()
        await self._lines[0].session()
        return self

    def sequencer(self, config: SequencerConfig) -> Sequencer:
        """Return a new sequencer of one of the chains, for `async with`."""
        line = self._line_of[config.chain_id]
        beat = max(config.tuning.heartbeat_seconds, self._chains / HEARTBEATS_PER_SECOND)
        return Sequencer(
            replace(config, tuning=replace(config.tuning, heartbeat_seconds=beat)),
            store=PostgresChainStore(
                config,
                self._clock,
                line,
                self._lines[0].looks,
                is_published=config.kafka is not None,
            ),
            keys=PostgresKeyStore(config, self._keys),
            lease=PostgresLease(config, self._clock, self._lease),
            sink=sink_of(config, self._producer),
            clock=self._clock,
            turns=self._turns,
        )

    def intake(
        self,
        config: TopicIntakeConfig,
        sequencer: Sequencer,
        *,
        on_progress: Callable[[TopicIntakeStats], None] | None = None,
    ) -> TopicIntake:
        """Return a new intake of one of the chains; many of them read with one consumer."""
        with needs_extra("kafka", "SharedConnections.intake"):
            from sequencer.intake.joint import JointConsumers
            from sequencer.intake.reader import TopicReader
            from sequencer.intake.topic import TopicIntake
        self._joint = self._joint or JointConsumers(config)
        source = TopicReader(config, self._joint)
        return TopicIntake(config, sequencer, source=source, on_progress=on_progress)

    async def close(self) -> None:
        """Close the connections, once all sequencers and intakes are closed."""
        self._home.check()
        if self._joint is not None:
            await self._joint.close()
        lines = (line.close() for line in self._lines)
        others = self._lease, self._keys, self._producer
        await asyncio.gather(*lines, *(each.close() for each in others if each is not None))

    def _note(self, error: Exception) -> None:
        """Log once, for all, how many connections are needed where the server has too few."""
        if is_too_many_connections(error):
            commits = len(self._lines)
            allowed = next((each.allowed for each in self._lines if each.allowed), "unknown so far")
            asks = ", one at take-overs that asks each host" if self._asks_each else ""
            self._outage.repeat(
                f"too few connections to the database: {self._chains} chains need "
                f"{commits + 2 + self._asks_each} ({commits} for commits, one for leases, one for "
                f"keys{asks}); allowed are {allowed}"
            )


@asynccontextmanager
async def open_sequencers(
    configs: Sequence[SequencerConfig], *, connections: int | None = None
) -> AsyncIterator[Mapping[int, Sequencer]]:
    """Lead many chains in one process; yields their sequencers by chain.

    They share connections to the database, `connections` for commits, by default
    `commit_connections`, and two more, and start side by side. It waits until each leads or has
    failed, but not for standbys: `until_leading` does. What ends one of them, also at its start,
    ends no other: its `until_stopped` and its calls raise it. Leaving closes all, as leaving a
    `Sequencer` does.

    Raises:
        SettingError: the configs have more than one database, or other deadlines for it.
        ConnectError: the settings cannot lead to a connection.
        RetryError: the database does not answer.
    """
    async with SharedConnections(configs, connections) as shared:
        if configs[0].tuning.calm_collector:
            calm_collector()
        sequencers = {config.chain_id: shared.sequencer(config) for config in configs}
        holding = [
            asyncio.create_task(_hold(each), name=f"orderchain chain {chain_id}")
            for chain_id, each in sequencers.items()
        ]
        try:
            for sequencer in sequencers.values():
                if not sequencer.is_standby:
                    with suppress(Exception):  # it is raised by its own calls
                        await sequencer.until_leading()
            yield sequencers
        finally:
            # Side by side: what was accepted is committed, and handed over.
            for task in holding:
                task.cancel()
            await uninterrupted(asyncio.gather(*holding, return_exceptions=True))


async def _hold(sequencer: Sequencer) -> None:
    """Lead until cancelled, or until the chain is led no longer."""
    async with sequencer:
        await sequencer.until_stopped()


def _checked(configs: Sequence[SequencerConfig], connections: int) -> SequencerConfig:
    """Return the first of the configs, which stands for all. Raises SettingError."""
    if not configs:
        raise SettingError("configs", 0, "one chain at least")
    if connections < 1:
        raise SettingError("connections", connections, "1 or more")
    seen: set[int] = set()
    first = configs[0]
    for config in configs:
        if config.chain_id in seen:
            raise SettingError("chain_id", config.chain_id, "each chain once")
        seen.add(config.chain_id)
        for name, value in _of_connections(config).items():
            wanted = _of_connections(first)[name]
            if value != wanted:
                shown = (each.shown if isinstance(each, DatabaseConfig) else each
                         for each in (value, wanted))  # fmt: skip
                field, chain = f"{name} of chain {config.chain_id}", first.chain_id
                raise SettingError(field, next(shown), f"{next(shown)}, as chain {chain} has it")
    return first


def _producer_of(configs: Sequence[SequencerConfig]) -> SharedProducer | None:
    """Return the producer of those that have a broker, if any has one."""
    with_broker = next((each for each in configs if each.kafka is not None), None)
    if with_broker is None:
        return None
    with needs_extra("kafka", "SequencerConfig.kafka"):
        from sequencer.stores.shared_producer import SharedProducer
    return SharedProducer(with_broker, len(configs))


def _of_connections(config: SequencerConfig) -> dict[str, object]:
    return {
        "database": DatabaseConfig.of(config.database),
        "unsafe_durability": config.unsafe_durability,
        "connect_seconds": config.tuning.connect_seconds,
        "commit_seconds": config.tuning.commit_seconds,
    }


def _whose(chain_ids: list[int]) -> str:
    """Return how `pg_stat_activity` names the chains of a shared connection: `1-50,60`."""
    runs: list[list[int]] = []
    for chain_id in chain_ids:
        if runs and chain_id == runs[-1][1] + 1:
            runs[-1][1] = chain_id
        else:
            runs.append([chain_id, chain_id])
    text = ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)
    if len(text) <= _WHOSE_CHARACTERS_MAX:
        return text
    return f"{chain_ids[0]}-{chain_ids[-1]}, {len(chain_ids)} chains"
