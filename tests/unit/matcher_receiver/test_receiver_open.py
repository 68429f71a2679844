"""What a receiver is made of, where one config says it all and where parts are handed in."""

from typing import Any

import pytest

from gapfill import GapReader, PreferredSources
from matcher_receiver import Receiver, ReceiverConfig
from orderchain import KafkaConfig, errors, open_receiver
from tests.builders.chains import CHAIN_ID
from tests.tuned import tuned

DATABASE, STANDBY, READER = (f"postgresql://{name}/x" for name in ("db", "standby", "reader"))


def config(**settings: Any) -> ReceiverConfig:
    whole = ReceiverConfig(chain_id=CHAIN_ID, name="mine", database=DATABASE, kafka="broker:9092")
    return tuned(whole, **settings)


def parts_of(receiver: Receiver) -> dict[str, object]:
    names = ("frames", "gap_source", "checkpoints", "snapshots")
    return {name: getattr(receiver, f"_{name}") for name in names}


def test_several_gap_databases_are_standbys_and_the_primary_last() -> None:
    parts = parts_of(open_receiver(config(gap_databases=(STANDBY, READER))))
    source = parts["gap_source"]
    assert isinstance(source, PreferredSources)
    readers = [reader for reader in source._sources if isinstance(reader, GapReader)]
    assert [reader._config.database for reader in readers] == [STANDBY, READER]
    single = parts_of(open_receiver(config(gap_databases=(READER,))))["gap_source"]
    assert isinstance(single, GapReader)
    assert single._config.database == READER


def test_settings_of_the_config_reach_the_parts() -> None:
    given = config(
        gap_databases=(READER,), page_rows=7, connect_seconds=1.5, statement_seconds=2.5,
        close_seconds=0.5, gaps_kept=9,
    )  # fmt: skip
    parts: dict[str, Any] = parts_of(open_receiver(given))
    reader, stored = parts["gap_source"]._config, parts["checkpoints"]._config
    assert (reader.page_rows, stored.gaps_kept) == (7, 9)
    for made in (reader, stored):
        deadlines = made.connect_seconds, made.statement_seconds, made.close_seconds
        assert deadlines == (1.5, 2.5, 0.5)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"database": None}, "database"),
        ({"database": None, "gap_databases": (READER,)}, "database"),
        ({"name": None}, "name"),
    ],
)
def test_config_that_lacks_a_part_is_refused(settings: dict[str, object], field: str) -> None:
    with pytest.raises(errors.SettingError) as caught:
        open_receiver(config(**settings))
    assert caught.value.field == field


def test_config_shows_no_password() -> None:
    secret = "postgresql://me:sesame@db/x"
    kafka = KafkaConfig(
        bootstrap_servers="broker:9092", security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN", sasl_username="me", sasl_password="sesame",
    )  # fmt: skip
    assert "sesame" not in repr(config(database=secret, gap_databases=(secret,), kafka=kafka))
