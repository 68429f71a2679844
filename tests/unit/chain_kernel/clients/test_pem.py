"""Files in PEM."""

from pathlib import Path

import pytest

from chain_kernel.clients.pem import read_certificates, read_file
from chain_kernel.errors import SettingError
from tests.certificates import Authority


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
