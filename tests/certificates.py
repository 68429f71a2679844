"""Certificates for servers and clients of one test run, made by an authority of its own."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme

HOST = "localhost"
"""The host that servers' certificates are for; 127.0.0.1 is the same server under a wrong name."""


@dataclass(frozen=True)
class Files:
    """A certificate and its key, as files and as text."""

    certificate: Path
    key: Path
    certificate_text: str
    key_text: str


class Authority:
    """Issues certificates into one folder; `path` is its own certificate."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._name = name
        self._ca = trustme.CA()
        self.text = self._ca.cert_pem.bytes().decode()
        self.path = _write(folder / f"{name}.pem", self.text)

    def server(self, host: str = HOST, *, name: str = "server", has_expired: bool = False) -> Files:
        """Issue a server's certificate for `host`."""
        end = datetime.now(UTC) - timedelta(days=1) if has_expired else None
        start = datetime.now(UTC) - timedelta(days=9) if has_expired else None
        leaf = self._ca.issue_cert(
            host, not_before=start, not_after=end, key_type=trustme.KeyType.RSA
        )
        return self._files(name, leaf)

    def client(self, user: str) -> Files:
        """Issue a client's certificate for `user`."""
        leaf = self._ca.issue_cert(
            f"{user}@orders.example", common_name=user, key_type=trustme.KeyType.RSA
        )
        return self._files(user, leaf)

    def _files(self, name: str, leaf: trustme.LeafCert) -> Files:
        certificate = "".join(each.bytes().decode() for each in leaf.cert_chain_pems)
        key = pkcs8(leaf.private_key_pem.bytes())
        stem = f"{self._name}-{name}"
        return Files(
            certificate=_write(self._folder / f"{stem}.crt", certificate),
            key=_write(self._folder / f"{stem}.key", key),
            certificate_text=certificate,
            key_text=key,
        )


def pkcs8(key: bytes, password: str = "") -> str:
    """Return a private key in PKCS#8, encrypted if there is a password."""
    from cryptography.hazmat.primitives import serialization

    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password:
        encryption = serialization.BestAvailableEncryption(password.encode())
    loaded = serialization.load_pem_private_key(key, None)
    return loaded.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    ).decode()


def _write(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path
