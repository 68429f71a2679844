"""Several hosts of which any may be chosen: none for a login that writes, at whichever door.

One that answers may be a standby that lags: what is read there is not what was committed.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from chain_kernel.errors import ConnectError, SettingError
from chain_verifier.verified_mark import set_mark
from chainctl.database import connected_to
from gapfill import GapReader, GapReaderConfig
from matcher_receiver import CheckpointConfig, PostgresCheckpointStore
from orderchain import SequencerConfig, open_sequencer
from outbox import Consumer, ConsumerConfig, Relay, RelayConfig
from outbox.roles import OUTBOX_OPERATOR
from tests.command_call import call_here

# Nothing listens there: what is not refused finds no server.
ANY = "postgresql://u@127.0.0.1:1,127.0.0.1:2/orders?sslmode=disable"


def mark(dsn: str) -> None:
    with suppress(ConnectError):
        set_mark(dsn, dsn, 1, after_id=0, until_id=1, seal=b"", verified_by="eve")


WRITERS: dict[str, Callable[[str], Any]] = {
    "sequencer": lambda dsn: open_sequencer(
        SequencerConfig(chain_id=1, database=dsn, kafka="unused:9092")
    ),
    "checkpoint": lambda dsn: PostgresCheckpointStore(
        CheckpointConfig(database=dsn, chain_id=1, name="r")
    ),
    "relay": lambda dsn: Relay(RelayConfig(database=dsn, kafka="unused:9092")),
    "consumer": lambda dsn: Consumer(
        ConsumerConfig(database=dsn, kafka="unused:9092", name="c", topics=("t",))
    ),
    "verified mark": mark,
}


@pytest.mark.parametrize("door", WRITERS)
@pytest.mark.parametrize("wanted", ["", "any", "prefer-standby"])
def test_login_that_writes_is_refused_several_hosts_of_which_any_may_be_chosen(
    door: str, wanted: str
) -> None:
    with pytest.raises(SettingError, match=r"target_session_attrs.*primary or read-write"):
        WRITERS[door](f"{ANY}&target_session_attrs={wanted}" if wanted else ANY)
    for good in ("primary", "read-write"):
        WRITERS[door](f"{ANY}&target_session_attrs={good}")


async def test_command_that_writes_is_refused_them_and_what_only_reads_is_not() -> None:
    with pytest.raises(SettingError, match="target_session_attrs"):
        async with connected_to(ANY, 1.0, OUTBOX_OPERATOR):
            pass
    GapReader(GapReaderConfig(database=ANY, chain_id=1))


def test_command_says_so_in_one_line(tmp_path: Path) -> None:
    asked = ["step-down", "--chain", "1", "--reason", "a drill"]
    done = call_here(asked, {"CHAINCTL_DATABASE": ANY}, tmp_path)
    assert done.code == 2
    (line,) = done.err.splitlines()
    assert "target_session_attrs" in line
