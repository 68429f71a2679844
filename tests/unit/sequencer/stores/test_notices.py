"""Notifications of many chains share a session, and a pause after one that failed."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from chain_kernel.clients.session import Session
from chain_kernel.errors import RetryError
from sequencer.publisher import heartbeat_frame
from sequencer.stores.session import SideSessions
from tests.unit.sequencer.builders import CONFIG, make_term
from tests.virtual import virtual


@virtual
async def test_failure_makes_all_chains_wait_together(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[float] = []

    async def fail(*_: Any) -> None:
        tries.append(asyncio.get_running_loop().time())
        raise RetryError("the server is away")

    monkeypatch.setattr(Session, "run", fail)
    sessions, term = SideSessions(CONFIG, "lease"), make_term()
    frame = heartbeat_frame(term, last_id=0, last_seal=term.last_seal)
    for number in range(1, 101):
        with pytest.raises(RetryError, match="the server is away"):
            await sessions.notify(replace(term, chain_id=number), frame)
        await asyncio.sleep(0.1)
    assert 2 < len(tries) < 20
    await sessions.close()
