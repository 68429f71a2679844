import pytest

from chain_kernel.clients.database_config import DatabaseConfig
from chain_kernel.errors import SettingError
from matcher_receiver import ReceiverConfig


def test_settings_of_a_database_are_kept_and_bad_ones_refused_with_their_field() -> None:
    standby = DatabaseConfig(host="standby", user="reader")
    config = ReceiverConfig(
        chain_id=7, database="host=db user=r", gap_databases=(standby, "postgresql://r@db/x")
    )
    assert config.gap_databases[0] is standby
    for given in ({"database": "db"}, {"gap_databases": ("postgresql://r@db/x", "db")}):
        with pytest.raises(SettingError, match="database was"):
            ReceiverConfig(chain_id=7, **given)
