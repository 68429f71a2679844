"""A text of libpq becomes one value, which refuses what cannot work and shows no secret."""

import pickle
from pathlib import Path
from typing import Any

import msgspec
import pytest

from chain_kernel.clients import pem
from chain_kernel.clients.database_config import DatabaseConfig, is_local
from chain_kernel.errors import SettingError
from chain_kernel.files import read_bounded
from tests.certificates import Authority

SECRET = "Tr0ub4dor"
BARE = {"HOME": "/nonexistent"}


def read(text: str, **environ: str) -> DatabaseConfig:
    return DatabaseConfig.of(text, {**BARE, **environ})


@pytest.mark.parametrize(
    ("text", "addresses", "user", "database"),
    [
        ("postgresql://u@h:6432/d", [("h", 6432)], "u", "d"),
        ("postgres://u@h/d", [("h", 5432)], "u", "d"),
        ("postgresql://u@h", [("h", 5432)], "u", "u"),
        ("postgresql://u@a:1,b:2/d", [("a", 1), ("b", 2)], "u", "d"),
        ("postgresql://u@a:1,b/d", [("a", 1), ("b", 5432)], "u", "d"),
        ("postgresql://u@[::1]:5433,[fe80::2]/d", [("::1", 5433), ("fe80::2", 5432)], "u", "d"),
        ("postgresql://u@%2Frun%2Fpg/d", [("/run/pg", 5432)], "u", "d"),
        ("postgresql:///d?host=h&port=1&user=u", [("h", 1)], "u", "d"),
        ("postgresql:///d?host=/run/pg&user=u", [("/run/pg", 5432)], "u", "d"),
        ("postgresql://u@h?dbname=d", [("h", 5432)], "u", "d"),
        ("postgresql://u%40x@h/a%20%2F%3Fb", [("h", 5432)], "u@x", "a /?b"),
        ("host=h port=1 dbname=d user=u", [("h", 1)], "u", "d"),
        ("host=a,b port=1,2 dbname=d user=u", [("a", 1), ("b", 2)], "u", "d"),
        ("host=a,b dbname=d user=u", [("a", 5432), ("b", 5432)], "u", "d"),
        ("host = h  user='the user'  dbname = 'a\\'b\\\\c'", [("h", 5432)], "the user", "a'b\\c"),
        ("user=u dbname='' host=h", [("h", 5432)], "u", "u"),
        ("host=::1 user=u dbname=d", [("::1", 5432)], "u", "d"),
    ],
)
def test_text_names_servers_user_and_database(
    text: str, addresses: Any, user: str, database: str
) -> None:
    config = read(text)
    assert config.addresses == addresses
    assert (config.login, config.database) == (user, database)


def test_environment_fills_what_the_text_leaves_out() -> None:
    environ = {
        "PGHOST": "db", "PGPORT": "6432", "PGUSER": "u", "PGPASSWORD": SECRET, "PGDATABASE": "d",
        "PGSSLMODE": "require", "PGTARGETSESSIONATTRS": "primary", "PGCONNECT_TIMEOUT": "7",
        "PGOPTIONS": "-c x=1",
    }  # fmt: skip
    config = read("postgresql://", **environ)
    assert config.addresses == [("db", 6432)]
    assert (config.login, config.database, config.password) == ("u", "d", SECRET)
    assert (config.sslmode, config.target_session_attrs) == ("require", "primary")
    assert (config.connect_timeout, config.options) == ("7", "-c x=1")
    named = read("postgresql://v:w@other:1/e?sslmode=disable", **environ)
    assert named.addresses == [("other", 1)]
    assert (named.login, named.database, named.password) == ("v", "e", "w")
    assert named.sslmode == "disable"


def test_service_goes_before_the_environment_and_behind_the_text(tmp_path: Path) -> None:
    file = tmp_path / "services"
    file.write_text("[orders]\nhost=db\nport=6432\nuser=u\npassword=50%\ndbname=d\n")
    environ = {"PGSERVICEFILE": str(file), "PGUSER": "not me"}
    config = read("postgresql:///e?service=orders", **environ)
    assert config.addresses == [("db", 6432)]
    assert (config.login, config.database, config.password) == ("u", "e", "50%")
    with pytest.raises(SettingError, match="a service in"):
        read("postgresql:///e?service=none", **environ)


def test_files_of_the_home_folder_are_used(authority: Authority, tmp_path: Path) -> None:
    folder = tmp_path / ".postgresql"
    folder.mkdir()
    files = authority.client("trader")
    (folder / "root.crt").write_text(authority.text)
    (folder / "postgresql.crt").write_text(files.certificate_text)
    (folder / "postgresql.key").write_text(files.key_text)
    config = read("postgresql://u@h/d", HOME=str(tmp_path))
    assert config.sslrootcert == str(folder / "root.crt")
    assert config.sslkey == str(folder / "postgresql.key")
    assert config.tls_mode == "verify-ca"
    assert read("postgresql://u@h/d?sslmode=disable", HOME=str(tmp_path)).sslcert == ""
    named = read(f"postgresql://u@h/d?sslrootcert={authority.path}", HOME=str(tmp_path))
    assert named.sslrootcert == str(authority.path)


@pytest.mark.parametrize(
    ("text", "mode", "is_exposed"),
    [
        ("postgresql://u@localhost/d", "prefer", False),
        ("postgresql://u@127.0.0.1,[::1]/d", "prefer", False),
        ("postgresql:///d?host=/run/pg&user=u", "prefer", False),
        ("postgresql://u@db/d", "require", True),
        ("postgresql://u@localhost,db/d", "require", True),
        ("postgresql://u@db/d?sslmode=prefer", "prefer", True),
        ("postgresql://u@db/d?sslmode=disable", "disable", True),
        ("postgresql://u@db/d?sslrootcert=CA", "verify-ca", True),
        ("postgresql://u@db/d?sslmode=verify-ca&sslrootcert=CA", "verify-ca", True),
        ("postgresql://u@db/d?sslmode=verify-full&sslrootcert=CA", "verify-full", False),
        ("postgresql://u@db/d?sslrootcert=system", "verify-full", False),
    ],
)
def test_tls_is_certain_elsewhere_and_warned_of_below_verify_full(
    authority: Authority, text: str, mode: str, is_exposed: bool
) -> None:
    config = read(text.replace("CA", str(authority.path)))
    assert config.tls_mode == mode
    assert (config.exposure() is not None) is is_exposed
    if is_exposed:
        assert "sslmode=verify-full" in str(config.exposure())
        assert "localhost" not in str(config.exposure())


@pytest.mark.parametrize(
    "host", ["db", "10.0.0.1", "localhost.example", "::2", "127.0.0.1.example"]
)
def test_host_elsewhere_is_not_local(host: str) -> None:
    assert not is_local(host)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "orders",
        f"mysql://u:{SECRET}@h/d",
        f"postgresql://u:{SECRET}/x@h/d",
        f"postgresql://u:a?{SECRET}@h/d",
        f"postgresql://u:a#{SECRET}@h/d",
        f"postgresql://u:a@{SECRET}@h/d",
        f"postgresql://u:{SECRET}",
        f"postgresql://h:{SECRET}/d",
        f"postgresql://u:{SECRET}@[h/d",
        f"host=h password='{SECRET}",
        f"host=h password={SECRET} x",
        f"host=h {SECRET}",
        f"postgresql://u@h/d?{SECRET}",
        f"postgresql+asyncpg://u:{SECRET}@h/d",
    ],
)
def test_text_that_cannot_be_read_is_refused_without_a_piece_of_it(text: str) -> None:
    with pytest.raises(SettingError) as refused:
        read(text)
    if text.startswith("postgresql+"):
        assert "leave out +asyncpg" in str(refused.value)
    assert SECRET not in str(refused.value)
    assert refused.value.__cause__ is None


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("postgresql://u@h:0/d", "port"),
        ("postgresql://u@db..example/d", "host"),
        (f"postgresql://u@h,{'h' * 64}/d", "host"),
        ("postgresql://u@h:65536/d", "port"),
        ("host=a,b,c port=1,2 user=u", "port"),
        ("postgresql://u@h/d?sslmode=verify_full", "sslmode"),
        ("postgresql://u@h/d?sslmode=verify-full", "sslrootcert"),
        ("postgresql://u@h/d?sslmode=verify-ca", "sslrootcert"),
        ("postgresql://u@h/d?sslmode=require&sslrootcert=system", "sslmode"),
        ("postgresql://u@h/d?sslrootcert=/nonexistent", "sslrootcert"),
        ("postgresql://u@h/d?sslcrl=/nonexistent", "sslcrl"),
        ("postgresql://u@h/d?sslcrl=/dev/null", "sslcrl"),
        ("postgresql://u@h/d?sslcert=/c", "sslkey"),
        ("postgresql://u@h/d?sslkey=/c", "sslcert"),
        ("postgresql://u@h/d?sslpassword=x", "sslpassword"),
        ("postgresql://u@localhost/d?sslnegotiation=direct", "sslmode"),
        ("postgresql://u@h/d?sslnegotiation=odd", "sslnegotiation"),
        ("postgresql://u@h/d?ssl_min_protocol_version=SSLv3", "ssl_min_protocol_version"),
        ("postgresql://u@h/d?target_session_attrs=odd", "target_session_attrs"),
        ("postgresql://u@h/d?connect_timeout=soon", "connect_timeout"),
        ("postgresql://u@h/d?connect_timeout=99999", "connect_timeout"),
        ("postgresql://u@h/d?channel_binding=require", "channel_binding"),
        ("postgresql://u@h/d?gssencmode=require", "gssencmode"),
        ("postgresql://u@h/d?require_auth=scram-sha-256", "require_auth"),
        ("postgresql://u@h/d?krbsrvname=x", "database option"),
        ("postgresql://u@h/d?passfile=/nonexistent", "passfile"),
    ],
)
def test_contradiction_is_refused_and_its_field_named(text: str, field: str) -> None:
    with pytest.raises(SettingError) as refused:
        read(text)
    assert refused.value.field == field
    assert "\n" not in str(refused.value)


def test_table_of_a_settings_file_is_decoded_and_checked() -> None:
    config = msgspec.convert({"host": "h", "port": 6432, "user": "u"}, DatabaseConfig)
    assert config.addresses == [("h", 6432)]
    with pytest.raises(SettingError):
        msgspec.convert({"host": "h", "sslmode": "odd"}, DatabaseConfig)
    with pytest.raises(msgspec.ValidationError, match="hots"):
        msgspec.convert({"hots": "h"}, DatabaseConfig)


def test_no_text_shows_a_secret() -> None:
    config = read(f"postgresql://u:{SECRET}@h:1/d?sslmode=require")
    assert config.shown == "postgresql://u:***@h:1/d?sslmode=require"
    assert SECRET not in repr(config)
    assert SECRET not in str(list(config.__rich_repr__()))
    assert pickle.loads(pickle.dumps(config)) == config  # noqa: S301 - our own bytes


def test_another_machine_gets_the_login_and_the_password_of_this_one(tmp_path: Path) -> None:
    file = tmp_path / "passfile"
    file.write_text(f"a:*:*:*:{SECRET}\nb:*:*:*:other\n")
    file.chmod(0o600)
    config = DatabaseConfig(host="a", passfile=str(file)).for_elsewhere()
    assert (config.user, config.password, config.passfile) == (config.login, SECRET, "")
    # Each host has its own: the file is needed there.
    both = DatabaseConfig(host="a,b", user="u", passfile=str(file))
    assert both.for_elsewhere() == both


def test_passfile_that_is_replaced_while_it_is_read_is_that_which_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is deleted, and made again."""
    file = tmp_path / ".pgpass"
    file.write_text(f"*:*:*:*:{SECRET}")
    file.chmod(0o600)
    config = read("postgresql://u@h/d", HOME=str(tmp_path))

    def read_once(*given: Any) -> bytes:
        content = read_bounded(*given)
        file.unlink()
        return content

    monkeypatch.setattr(pem, "read_bounded", read_once)
    assert config.read_password("h", 5432) == SECRET
    assert read("postgresql://u@h/d", HOME=str(tmp_path)).passfile == ""
