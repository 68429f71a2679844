"""Keys of every form that OpenSSL writes become the one form that Java reads."""

import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from chain_kernel.clients.pem import read_certificates, read_file, read_key
from chain_kernel.errors import SettingError
from tests.certificates import Authority

OLD = serialization.PrivateFormat.TraditionalOpenSSL
NEW = serialization.PrivateFormat.PKCS8


def written(path: Path, key: Any, form: Any, password: str = "") -> str:
    hidden: Any = serialization.NoEncryption()
    if password:
        hidden = serialization.BestAvailableEncryption(password.encode())
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, hidden))
    return str(path)


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [
        (rsa.generate_private_key(65_537, 2_048), "RSA"),
        (ec.generate_private_key(ec.SECP256R1()), "EC"),
        (ec.generate_private_key(ec.SECP521R1()), "EC"),
    ],
    ids=["rsa", "ec", "ec-large"],
)
@pytest.mark.parametrize("form", [OLD, NEW], ids=["old", "pkcs8"])
def test_key_stays_the_same_in_pkcs8(key: Any, algorithm: str, form: Any, tmp_path: Path) -> None:
    found = read_key("key", written(tmp_path / "key", key, form))
    assert found.text.startswith("-----BEGIN PRIVATE KEY-----\n")
    assert (found.algorithm, found.is_encrypted) == (algorithm, False)
    assert found.is_as_stored is (form is NEW)
    loaded: Any = serialization.load_pem_private_key(found.text.encode(), None)
    assert loaded.private_numbers() == key.private_numbers()


def test_encrypted_key_in_pkcs8_stays_encrypted(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    found = read_key("key", written(tmp_path / "key", key, NEW, "sesame"))
    assert found.is_encrypted
    assert serialization.load_pem_private_key(found.text.encode(), b"sesame") is not None


def test_encrypted_key_in_an_old_form_is_refused_with_what_to_do(tmp_path: Path) -> None:
    key = rsa.generate_private_key(65_537, 2_048)
    path = written(tmp_path / "key", key, OLD, "sesame")
    with pytest.raises(SettingError, match="openssl pkcs8 -topk8") as refused:
        read_key("ssl_keyfile", path)
    assert refused.value.field == "ssl_keyfile"


def test_old_form_without_a_converter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "key", ec.generate_private_key(ec.SECP256R1()), OLD)
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives", None)
    with pytest.raises(SettingError, match="openssl pkcs8 -topk8"):
        read_key("ssl_keyfile", path)


def test_certificates_are_taken_out_of_a_file(authority: Authority, tmp_path: Path) -> None:
    path = tmp_path / "bundle"
    path.write_text(f"subject=/CN=x\n{authority.text}\n{authority.text}")
    assert read_certificates("ca", str(path)).count("BEGIN CERTIFICATE") == 2
    assert "subject" not in read_certificates("ca", str(path))


def test_file_in_binary_form_is_named_so(tmp_path: Path) -> None:
    path = tmp_path / "der"
    path.write_bytes(b"\x30\x82\xff\xfe")
    with pytest.raises(SettingError, match="PEM, not DER"):
        read_file("ca", str(path))
