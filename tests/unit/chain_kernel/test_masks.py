"""A password never shows, however odd the address."""

import re
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from chain_kernel.errors import SettingError
from chain_kernel.masks import mask_addresses, mask_dsn, masked, written_passwords
from chainctl.settings import shown

PATIENT = settings(deadline=None, print_blob=True)
SECRET = "Tr0ub4dor"


def words(secret: str) -> st.SearchStrategy[str]:
    """Passwords with `secret` in them, between whatever else."""
    return st.tuples(st.text(max_size=6), st.text(max_size=6)).map(secret.join)


@PATIENT
@given(words(SECRET))
@example(f"/{SECRET}")
@example(f"?{SECRET}")
@example(f"#{SECRET}")
@example(f"@{SECRET}")
@example(f":{SECRET}")
@example(f"[{SECRET}")
@example(f"%{SECRET}")
@example(f"12/{SECRET}")
@example(f"{SECRET}@")
@example(f"{SECRET}/")
@example(f"{SECRET}?a=")
@example(f"a,b:1/{SECRET}")
def test_password_before_the_host_never_shows_even_unescaped(password: str) -> None:
    for written in (password, quote(password, safe="")):
        dsn = f"postgresql://user:{written}@host:5432/db?application_name=x"
        assert SECRET not in mask_dsn(dsn)
        assert SECRET in "".join(written_passwords(dsn))
        if not re.search(r"[\s\"'<>]", written):  # such a mark looks like the end of the address
            assert SECRET not in mask_addresses(f"cannot reach '{dsn}': a@b")


@PATIENT
@given(words(SECRET), st.sampled_from(["password", "sslpassword", "PassWord", "pass%77ord"]))
@example(f"a&{SECRET}", "password")
@example(f"a&{SECRET}=", "password")
@example(f"a#{SECRET}", "password")
def test_password_among_the_options_never_shows_even_unescaped(password: str, name: str) -> None:
    for written in (password, quote(password, safe="")):
        dsn = f"postgresql://user@host/db?a=b&{name}={written}"
        assert SECRET not in mask_dsn(dsn)


@PATIENT
@given(words(SECRET))
@example(f"a/{SECRET}")
@example(f"a@{SECRET}")
@example(f"a,{SECRET}")
def test_login_of_an_address_without_a_scheme_never_shows(password: str) -> None:
    for address in (
        f"u:{password}@host:9092",
        f"a:1,u:{password}@host:9092,b:2",
        f"u/x:{password}@host:9092",
    ):
        assert SECRET not in masked(address)
        assert SECRET not in str(SettingError("kafka", address, "host:port"))
        assert SECRET not in str(shown("kafka", address))


def test_fragment_of_a_url_never_shows() -> None:
    assert masked(f"https://host/x#token={SECRET}") == "https://host/x#***"


@pytest.mark.parametrize(
    "text",
    ["host:9092,other:9092", "[::1]:9092", "/srv/a:b@c", "me@host", "a: b", "s3://bucket/a", ""],
)
def test_text_without_a_login_is_shown_whole(text: str) -> None:
    assert masked(text) == text
    line = f"line 3: '{text}' of a@b, (http://[::1]:80/x): postgresql://u@h:5432/d. s3://b"
    assert mask_addresses(line) == line


@pytest.mark.parametrize(
    "dsn",
    [
        f"host=h password={SECRET} dbname=d",
        f"user:{SECRET}@host/db",
        f"//user:{SECRET}@host/db",
        f"postgresql:user:{SECRET}@host/db",
        f"postgresql:/user:{SECRET}@host/db",
        f"postgresql:\\\\user:{SECRET}@host/db",
        f"postgresql://user:{SECRET}/db",
        f"postgresql://user:{SECRET}",
        f"postgresql://user:{SECRET}@[::1/db",
        f"postgresql://user@{SECRET}@host/db",
        f"postgresql://host/db;password={SECRET}",
        f"postgresql://host/db?a=1;password={SECRET}",
        f"postgresql:///db?password={SECRET}",
        f" postgresql://user:{SECRET}@host/db",
        f"postgresql://user:a\n{SECRET}@host/db",
        SECRET,
        "",
    ],
)
def test_odd_address_never_shows_the_password(dsn: str) -> None:
    assert SECRET not in mask_dsn(dsn)


@pytest.mark.parametrize(
    ("dsn", "shown"),
    [
        ("postgresql://u:p@h:5432/d", "postgresql://u:***@h:5432/d"),
        ("postgresql://u@h/d", "postgresql://u@h/d"),
        ("postgresql://h/d", "postgresql://h/d"),
        ("postgresql://u:@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u:p@[::1]:5432/d", "postgresql://u:***@[::1]:5432/d"),
        ("postgresql://u:p@a:1,b:2/d", "postgresql://u:***@a:1,b:2/d"),
        ("postgresql://u:p@%2Ftmp/d", "postgresql://u:***@%2Ftmp/d"),
        (
            "postgresql://u@h/d?sslmode=require&password=p",
            "postgresql://u@h/d?sslmode=require&password=***",
        ),
        ("postgresql://u@h:port/d", "postgresql://u@h:port/d"),
        ("postgresql+asyncpg://h/d?sslmode=x#y", "postgresql+asyncpg://h/d?sslmode=x#y"),
        ("host=h password=p", "***"),
    ],
)
def test_plain_address_shows_all_but_the_password(dsn: str, shown: str) -> None:
    assert mask_dsn(dsn) == shown
    assert mask_dsn(shown) == shown
