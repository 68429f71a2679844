"""Many chains of one process that read their topics jointly, and share a producer."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from chain_kernel.clients.kafka_config import KafkaConfig
from sequencer import Sequencer, SharedConnections, TopicIntakeConfig
from tests.builders.created_chain import Chain
from tests.deadlines import deadline, until


class JointChains:
    """Chains that are led, each with its intake."""

    def __init__(self, chains: Sequence[Chain], sequencers: Sequence[Sequencer]) -> None:
        self.chains = chains
        self.sequencers = sequencers

    async def until_keys(self, keys: Sequence[str], *numbers: int) -> None:
        """Wait until some of the chains, by default all, hold exactly the rows of `keys`."""
        numbers = numbers or tuple(range(len(self.chains)))
        found: dict[int, list[str]] = {}
        try:
            async with deadline():
                for number in numbers:
                    while found.get(number) != list(keys):
                        await asyncio.sleep(0.05)
                        rows = await self.chains[number].rows()
                        found[number] = [row.payload.decode() for row in rows]
        except TimeoutError:
            raise AssertionError(f"chain {number} holds {found[number]}, not {keys}") from None

    async def until_published(self) -> None:
        """Wait until brokers have acknowledged all that is committed."""
        await until(lambda: all(map(_is_published, self.sequencers)))


def _is_published(sequencer: Sequencer) -> bool:
    stats = sequencer.stats()
    return stats.head_published == stats.head_persisted


@asynccontextmanager
async def joint_chains(
    chains: Sequence[Chain], topics: Sequence[str], kafka: str | KafkaConfig
) -> AsyncIterator[JointChains]:
    """Lead `chains`, and read each from its topic, until the block ends."""
    async with AsyncExitStack() as stack:
        shared = await stack.enter_async_context(
            SharedConnections([chain.config for chain in chains])
        )
        sequencers = [
            await stack.enter_async_context(shared.sequencer(chain.config)) for chain in chains
        ]
        intakes = [
            shared.intake(TopicIntakeConfig(kafka=kafka, topic=topic), sequencer)
            for topic, sequencer in zip(topics, sequencers, strict=True)
        ]
        async with asyncio.TaskGroup() as running:
            for intake in intakes:
                running.create_task(intake.run())
            yield JointChains(chains, sequencers)
            for intake in intakes:
                intake.stop()
