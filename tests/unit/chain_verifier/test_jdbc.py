from __future__ import annotations

import pytest

from chain_verifier.jdbc import jdbc_address
from orderchain.errors import SettingError


def test_jdbc_with_a_plain_url_splits_it() -> None:
    address = jdbc_address("postgresql://auditor:s%40c%2Fret%25@db.example:6432/orders")
    assert address.url == "jdbc:postgresql://db.example:6432/orders"
    assert address.properties["user"] == "auditor"
    assert address.properties["password"] == "s@c/ret%"


def test_jdbc_with_a_password_never_shows_it() -> None:
    address = jdbc_address("postgresql://auditor:sesame@h/orders?password=sesame2")
    assert "sesame" not in repr(address)
    assert "sesame" not in address.url


@pytest.mark.parametrize(
    ("dsn", "url"),
    [
        ("postgresql://u@h/d", "jdbc:postgresql://h/d"),
        ("postgres://u@h/d", "jdbc:postgresql://h/d"),
        ("postgresql://u@h", "jdbc:postgresql://h/u"),
        ("postgresql://u@/d", "jdbc:postgresql://localhost/d"),
        ("postgresql:///d?host=h&port=1&user=u", "jdbc:postgresql://h:1/d"),
        ("postgresql://u@[::1]:5433/d", "jdbc:postgresql://[::1]:5433/d"),
        ("postgresql://u@a:1,b:2/d", "jdbc:postgresql://a:1,b:2/d"),
        ("postgresql://u@h/a%20%2F%3Fb", "jdbc:postgresql://h/a%20%2F%3Fb"),
        ("postgresql://u@h?dbname=d", "jdbc:postgresql://h/d"),
    ],
)
def test_jdbc_with_libpq_forms_gives_the_same_server(dsn: str, url: str) -> None:
    assert jdbc_address(dsn).url == url


def test_jdbc_with_options_gives_them_under_jdbcs_names() -> None:
    address = jdbc_address(
        "postgresql://u@h/d?sslmode=verify-full&connect_timeout=3"
        "&target_session_attrs=read-only&options=-c%20statement_timeout%3D0"
    )
    assert address.properties["sslmode"] == "verify-full"
    assert address.properties["connectTimeout"] == "3"
    assert address.properties["targetServerType"] == "secondary"
    assert address.properties["options"] == "-c statement_timeout=0"


def test_jdbc_without_options_still_has_deadlines() -> None:
    properties = jdbc_address("postgresql://u@h/d").properties
    assert int(properties["connectTimeout"]) > 0
    assert int(properties["socketTimeout"]) > 0


@pytest.mark.parametrize(
    "dsn",
    [
        "",
        "host=h dbname=d password=sesame",
        "mysql://u:sesame@h/d",
        "postgresql://u:sesame@[h/d",
        "postgresql://u:sesame@/d?host=/var/run/postgresql",
        "postgresql://u:sesame@%2Fvar%2Frun/d",
        "postgresql://u:sesame@h/d?krbsrvname=x",
        "postgresql://u:sesame@h/d?target_session_attrs=odd",
    ],
)
def test_jdbc_with_what_it_cannot_reach_is_refused_without_the_password(dsn: str) -> None:
    with pytest.raises(SettingError) as refused:
        jdbc_address(dsn)
    assert "sesame" not in str(refused.value)
