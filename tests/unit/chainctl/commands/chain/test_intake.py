"""Many chains in one process: which of their failures end a chain, and which are waited for."""

import asyncio
from collections.abc import Callable
from typing import Self

import pytest

import sequencer
from chain_kernel.errors import ConnectError, PageDamaged, RetryError, SchemaError, TopicError
from chainctl.commands.chain.intake import ManyTopicsRun, TopicIntakeRun
from chainctl.output import ProgressBar
from sequencer import SequencerConfig, TopicIntakeConfig
from tests.virtual import virtual

CLOSED_PORT = ConnectError("database", "127.0.0.1:5432", "a server there")
NO_SCHEMA = SchemaError("schema", None, "chainctl schema apply")
END = PageDamaged(7, 3, 4, "keys")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Exception]]:
    """Has each sequencer end with the next error; returns those that are left."""

    def prepare(*errors: Exception) -> list[Exception]:
        left = list(errors)

        class Shared:
            def __init__(self, configs: object) -> None: ...

            async def __aenter__(self) -> Self:
                return self

            async def __aexit__(self, *_: object) -> None: ...

            def sequencer(self, _: SequencerConfig) -> None:
                raise left.pop(0)

        async def find_topics(_: object) -> dict[str, TopicError]:
            return {}

        monkeypatch.setattr(sequencer, "SharedConnections", Shared)
        monkeypatch.setattr(sequencer, "refused_topics", find_topics)
        return left

    return prepare


@pytest.mark.parametrize(
    ("errors", "left"), [((CLOSED_PORT, CLOSED_PORT, END), 0), ((NO_SCHEMA, END), 1)]
)
@virtual
async def test_standby_of_one_of_many_chains_waits_for_a_server_that_it_has_reached_before(
    opened: Callable[..., list[Exception]], errors: tuple[Exception, ...], left: int
) -> None:
    found = opened(*errors)
    config = SequencerConfig(
        chain_id=7, database="postgresql://h/d", kafka="h:1", owner="one", standby=True
    )
    run = ManyTopicsRun([(config, TopicIntakeConfig(kafka="h:1", topic="t"))], None)
    with pytest.raises(type(errors[-1 - left])):
        await run.run(ProgressBar("", None))
    assert len(found) == left


@pytest.mark.parametrize("failure", [CLOSED_PORT, RetryError("kafka: h:1: not this time")])
@virtual
async def test_standby_starts_while_the_broker_says_nothing_of_the_topics(
    opened: Callable[..., list[Exception]],
    monkeypatch: pytest.MonkeyPatch,
    failure: Exception,
) -> None:
    found = opened(NO_SCHEMA)

    async def fail(_: object) -> None:
        raise failure

    monkeypatch.setattr(sequencer, "refused_topics", fail)
    monkeypatch.setattr(sequencer, "check_intake_topic", fail)
    config = SequencerConfig(
        chain_id=7, database="postgresql://h/d", kafka="h:1", owner="one", standby=True
    )
    topic = TopicIntakeConfig(kafka="h:1", topic="t")
    with pytest.raises(SchemaError):
        await ManyTopicsRun([(config, topic)], None).run(ProgressBar("", None))
    assert found == []
    await TopicIntakeRun(config, topic).check()


@virtual
async def test_chain_of_a_missing_topic_is_not_led_before_the_topic_is_seen(
    opened: Callable[..., list[Exception]], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = opened(NO_SCHEMA, END)
    missing = TopicError("topic", "t7", "a topic that exists")
    looks: list[Exception | None] = [missing, CLOSED_PORT, RetryError("not this time"), None]

    async def find_topics(_: object) -> dict[str, TopicError]:
        return {"t7": missing}

    async def check_topic(_: object) -> None:
        assert found == [END], "the other chain was led, this one was not"
        if failure := looks.pop(0):
            raise failure

    monkeypatch.setattr(sequencer, "refused_topics", find_topics)
    monkeypatch.setattr(sequencer, "check_intake_topic", check_topic)
    chains = [
        (
            SequencerConfig(
                chain_id=chain, database="postgresql://h/d", kafka="h:1", owner="o", standby=True
            ),
            TopicIntakeConfig(kafka="h:1", topic=f"t{chain}"),
        )
        for chain in (8, 7)
    ]
    with pytest.raises(SchemaError):
        await ManyTopicsRun(chains, None).run(ProgressBar("", None))
    assert (looks, found) == ([], [])


@virtual
async def test_connections_outlive_the_last_chain_of_a_process_that_stops(
    opened: Callable[..., list[Exception]], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened()
    leading = asyncio.Semaphore(0)
    handed_over: list[int] = []

    async def lead(run: TopicIntakeRun, *_: object) -> None:
        leading.release()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(run.config.chain_id)
            handed_over.append(run.config.chain_id)

    async def leave(*_: object) -> None:
        assert handed_over == [1, 2, 3]

    monkeypatch.setattr(TopicIntakeRun, "lead", lead)
    monkeypatch.setattr(sequencer.SharedConnections, "__aexit__", leave)
    chains = [
        (
            SequencerConfig(chain_id=chain, database="postgresql://h/d", kafka="h:1"),
            TopicIntakeConfig(kafka="h:1", topic=f"t{chain}"),
        )
        for chain in (1, 2, 3)
    ]
    running = asyncio.create_task(ManyTopicsRun(chains, None).run(ProgressBar("", None)))
    for _ in chains:
        await leading.acquire()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
