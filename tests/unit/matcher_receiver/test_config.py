import msgspec
import pytest

from chain_kernel.clients.database_config import DatabaseConfig
from chain_kernel.errors import SettingError
from matcher_receiver import CheckpointConfig, KafkaSourceConfig, ReceiverConfig, ReceiverTuning


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (ReceiverConfig, {"chain_id": 0}),
        (ReceiverConfig, {"chain_id": 1, "until": -1}),
        (ReceiverConfig, {"chain_id": 1, "until": "end"}),
        (ReceiverConfig, {"chain_id": 1, "tuning": {"gaps_kept": 0}}),
        (ReceiverTuning, {"poll_after_seconds": 0}),
        (ReceiverConfig, {"chain_id": 1, "no_such_setting": 1}),
        (KafkaSourceConfig, {"kafka": "", "topic": "t"}),
        (KafkaSourceConfig, {"kafka": "b:1", "topic": "t" * 250}),
        (CheckpointConfig, {"database": "", "chain_id": 1}),
    ],
)
def test_settings_out_of_bounds_are_refused(kind: type, fields: dict[str, object]) -> None:
    with pytest.raises((msgspec.ValidationError, SettingError)):
        msgspec.convert(fields, kind)


def test_settings_of_a_database_are_kept_and_bad_ones_refused_with_their_field() -> None:
    standby = DatabaseConfig(host="standby", user="reader")
    config = ReceiverConfig(
        chain_id=7, database="host=db user=r", gap_databases=(standby, "postgresql://r@db/x")
    )
    assert config.gap_databases[0] is standby
    for given in ({"database": "db"}, {"gap_databases": ("postgresql://r@db/x", "db")}):
        with pytest.raises(SettingError, match="database was"):
            ReceiverConfig(chain_id=7, **given)
