from __future__ import annotations

import os
from pathlib import Path

import pytest

from local_stack import PostgresServer, PostgresServerConfig
from local_stack.errors import StackError
from local_stack.folders import Account

OURSELVES = Account(name="me", user_id=os.geteuid(), group_id=os.getegid(), switched=False)


def make_server(settings: dict[str, str] | None = None) -> PostgresServer:
    config = PostgresServerConfig(
        directory=Path("/nonexistent"),
        port=20_123,
        passwords={"postgres": "p/w@1", "auditor": "secret-two"},
        settings=settings or {},
    )
    return PostgresServer(config, account=OURSELVES)


def test_dsn_escapes_the_password_which_the_config_hides() -> None:
    expected = "postgresql://postgres:p%2Fw%401@127.0.0.1:20123/orderchain"
    assert make_server().dsn(database="orderchain") == expected
    assert "secret-two" not in repr(make_server().config)
    with pytest.raises(StackError, match="no role nobody here, known are: auditor, postgres"):
        make_server().dsn("nobody")


def test_settings_of_the_caller_win_and_are_quoted() -> None:
    text = make_server({"fsync": "off", "log_line_prefix": "it's"})._settings()
    assert "fsync = 'off'" in text
    assert "fsync = 'on'" not in text
    assert "log_line_prefix = 'it''s'" in text


@pytest.mark.parametrize("name", ["a'b", 'a"b', "a b", "", "a\nb", "a\\b"])
def test_create_database_with_an_odd_name_is_refused(name: str) -> None:
    with pytest.raises(StackError, match="letters, digits"):
        make_server().create_database(name)
