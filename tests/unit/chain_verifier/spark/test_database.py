"""The address by which Spark reaches a database says what asyncpg is given, and has deadlines."""

import logging

import pytest

from chain_kernel.clients.database_config import DatabaseConfig
from chain_kernel.clients.options import JdbcAddress
from chain_kernel.errors import SettingError
from chain_verifier.config import DatabaseSource
from chain_verifier.spark.database import chain_address


def address_of(database: str | DatabaseConfig) -> JdbcAddress:
    return chain_address(DatabaseSource(database=database, connect_seconds=2.5))


def test_address_has_deadlines_and_no_secret_in_its_texts() -> None:
    address = address_of("postgresql://auditor:s%40c%2Fret%25@db.example:6432/orders")
    assert address.url == "jdbc:postgresql://db.example:6432/orders"
    assert address.properties["password"] == "s@c/ret%"
    assert "s@c" not in repr(address)
    assert address.properties["driver"] == "org.postgresql.Driver"
    # JDBC knows whole seconds only.
    assert address.properties["connectTimeout"] == address.properties["loginTimeout"] == "3"
    assert int(address.properties["socketTimeout"]) > 0
    # A backend that waits for a lock ends soon after its client has given up.
    assert "-c client_connection_check_interval=2s" in address.properties["options"]


def test_settings_of_the_config_come_before_the_defaults() -> None:
    config = DatabaseConfig(host="h", user="u", connect_timeout=7, application_name="ours")
    properties = address_of(config).properties
    assert properties["connectTimeout"] == "7"
    assert properties["ApplicationName"] == "ours"
    assert properties["sslmode"] == "require"


def test_environment_of_libpq_is_asked_of_spark_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGSSLMODE", "verify-full")
    monkeypatch.setenv("PGSSLROOTCERT", "system")
    monkeypatch.setenv("PGTARGETSESSIONATTRS", "standby")
    properties = address_of("host=a,b port=1,2 user=u").properties
    assert properties["sslmode"] == "verify-full"
    assert properties["targetServerType"] == "secondary"
    monkeypatch.delenv("PGSSLROOTCERT")
    with pytest.raises(SettingError, match="sslrootcert"):
        address_of("host=a user=u")


def test_host_where_another_one_may_pose_as_the_server_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, logger="chain_kernel.clients.database_config"):
        address_of("postgresql://u@no-such-auditor.example/d")
        address_of("postgresql://u@no-such-auditor.example/d")
        address_of("postgresql://u@localhost/d")
    (record,) = caplog.records
    assert "use sslmode=verify-full" in record.getMessage()


@pytest.mark.parametrize("database", ["", "mysql://u:sesame@h/d",
                                      "postgresql://u:sesame@%2Fvar%2Frun/d"])  # fmt: skip
def test_what_cannot_be_reached_is_refused_without_the_password(database: str) -> None:
    with pytest.raises(SettingError) as refused:
        address_of(database)
    assert "sesame" not in str(refused.value)
