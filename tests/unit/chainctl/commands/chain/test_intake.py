"""Many chains in one process: which of their failures end a chain, and which are waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import sequencer
from chain_kernel.errors import ConnectError, PageDamaged, SchemaError, TopicError
from chainctl.commands.chain.intake import ManyTopicsRun
from chainctl.output import ProgressBar
from sequencer import SequencerConfig, TopicIntakeConfig
from tests.virtual import virtual

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

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
        chain_id=7, database="postgresql://h/d", kafka="h:1", name="one", standby=True
    )
    run = ManyTopicsRun([(config, TopicIntakeConfig(kafka="h:1", topic="t"))], None)
    with pytest.raises(type(errors[-1 - left])):
        await run.run(ProgressBar("", None))
    assert len(found) == left
