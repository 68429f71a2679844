"""The clients of a message service, and what each of them may do."""

from pathlib import Path

import pytest

from chain_kernel.errors import SettingError
from outbox.service.config import Client, Clients, draw_token, hash_token, read_clients

HASH = hash_token("a token").hex()


def client(name: str = "payments", *tokens: str, **settings: object) -> Client:
    hashes = tuple(hash_token(each).hex() for each in tokens or (name,))
    return Client(name=name, token_sha256=hashes, **settings)  # type: ignore[arg-type]


def test_token_finds_its_client_and_nobody_else() -> None:
    old, new = draw_token(), draw_token()
    clients = Clients([client("a"), client("b", old, new), client("c")])
    assert clients.by_token(old) is clients.by_token(new) is clients.by_name("b")
    for shown in ("", "A", " b", new + "x", HASH, "x" * 10_000, "\ud800"):
        assert clients.by_token(shown) is None


def test_star_is_every_destination_and_nothing_is_none() -> None:
    named = client(destinations=("clearing",))
    assert named.may_send_to("clearing")
    assert not named.may_send_to("ledger")
    assert client(destinations=("*",)).may_send_to("ledger")
    assert not client().may_send_to("clearing")
    assert not client().may_confirm_as("clearing-service")
    assert client(consumers=("x",)).may_confirm_as("x")


@pytest.mark.parametrize(
    ("one", "other", "match"),
    [
        (client("a", "1"), client("a", "2"), "is there twice"),
        (client("a", "1"), client("b", "1"), "token_sha256"),
    ],
)
def test_name_or_token_of_two_clients_is_refused(one: Client, other: Client, match: str) -> None:
    with pytest.raises(SettingError, match=match):
        Clients([one, other])


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host/x",
        "http://",
        "check",
        "http://user:secret@host/",
        "http://h:0/",
        "http://a b/",
        "http://user:se?secret@host/",
        "http://user:se/secret@host/",
        "http://user:secret@a[b/",
    ],
)
def test_url_that_can_not_be_called_is_refused_without_its_secret(url: str) -> None:
    with pytest.raises(SettingError, match="check_url of client payments") as caught:
        client(check_url=url)
    assert "secret" not in str(caught.value)


def test_file_of_clients_is_read(tmp_path: Path) -> None:
    path = tmp_path / "clients.toml"
    path.write_text(f'[[client]]\nname = "payments"\ntoken_sha256 = ["{HASH}"]\ncall_token = "s"\n')
    path.chmod(0o600)
    found = read_clients(path).by_token("a token")
    assert found is not None
    assert repr(found) == "Client(name='payments')", "it shows no secret"


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "client"),
        ("[[client]", "TOML"),
        ('[[client]]\nname = "a"\n', "token_sha256"),
        (f'[[client]]\nname = "a"\ntoken_sha256 = ["{HASH[:-1]}"]\n', "clients as documented"),
        (f'[[client]]\nname = ""\ntoken_sha256 = ["{HASH}"]\n', "length >= 1"),
        (f'[[client]]\nname = "a"\ntoken_sha256 = ["{HASH}"]\nsecret = "x"\n', "unknown field"),
    ],
)
def test_file_of_clients_that_is_none_is_refused(tmp_path: Path, text: str, match: str) -> None:
    path = tmp_path / "clients.toml"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(SettingError, match=match):
        read_clients(path)


def test_file_of_clients_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="No such file"):
        read_clients(tmp_path / "none")


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o660, 0o666])
def test_file_of_clients_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "clients.toml"
    path.write_text(f'[[client]]\nname = "payments"\ntoken_sha256 = ["{HASH}"]\n')
    path.chmod(mode)
    with pytest.raises(SettingError, match=rf"\(mode {mode:o}\).*chmod 6[04]0") as caught:
        read_clients(path)
    assert HASH not in str(caught.value)
    path.chmod(0o640)
    assert read_clients(path).by_name("payments") is not None, "its group may read it"
