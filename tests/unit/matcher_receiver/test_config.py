from __future__ import annotations

from random import Random

import msgspec
import pytest

from matcher_receiver import CheckpointConfig, KafkaSourceConfig, ReceiverConfig
from matcher_receiver.backoff import FIRST_SECONDS, Backoff
from orderchain.errors import SettingError


def test_checkpoint_config_shows_no_password() -> None:
    config = CheckpointConfig(database="postgresql://r:very-secret@db/x", chain_id=7, name="r")
    assert "very-secret" not in repr(config)
    assert "db" in repr(config)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (ReceiverConfig, {"chain_id": 0}),
        (ReceiverConfig, {"chain_id": 1, "poll_after_seconds": 0}),
        (ReceiverConfig, {"chain_id": 1, "until_id": -1}),
        (ReceiverConfig, {"chain_id": 1, "gaps_kept": 0}),
        (ReceiverConfig, {"chain_id": 1, "no_such_setting": 1}),
        (KafkaSourceConfig, {"kafka": "", "topic": "t"}),
        (KafkaSourceConfig, {"kafka": "b:1", "topic": "t" * 250}),
        (CheckpointConfig, {"database": "", "chain_id": 1}),
    ],
)
def test_settings_out_of_bounds_are_refused(kind: type, fields: dict[str, object]) -> None:
    with pytest.raises((msgspec.ValidationError, SettingError)):
        msgspec.convert(fields, kind)


def test_backoff_grows_to_its_bound_and_begins_anew_after_a_success() -> None:
    backoff = Backoff(2.0, Random(1))
    pauses = [backoff.next_seconds() for _ in range(200)]
    assert FIRST_SECONDS / 2 <= pauses[0] <= FIRST_SECONDS
    assert all(1.0 <= pause <= 2.0 for pause in pauses[10:])
    assert len(set(pauses[10:])) > 100  # jittered
    backoff.reset()
    assert backoff.next_seconds() <= FIRST_SECONDS
