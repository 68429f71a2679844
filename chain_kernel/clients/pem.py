"""PEM files: certificates and private keys as text, and keys in the one form that Java reads."""

from __future__ import annotations

import base64
import re
import ssl
from typing import TYPE_CHECKING, Final, NamedTuple

from chain_kernel.errors import SettingError
from chain_kernel.files import open_regular, read_bounded

if TYPE_CHECKING:
    from collections.abc import Callable
    from io import BufferedReader

_FILE_BYTES_MAX: Final = 4 * 2**20
"""A whole bundle of a system's authorities has a quarter of a megabyte."""

_BLOCK: Final = re.compile(
    r"-----BEGIN ([A-Z0-9 ]+)-----\s+(.*?)-----END \1-----", re.ASCII | re.DOTALL
)
_CERTIFICATE: Final = "CERTIFICATE"
_KEY: Final = "PRIVATE KEY"
_ENCRYPTED_KEY: Final = "ENCRYPTED PRIVATE KEY"
_CONVERT: Final = "a key in PKCS#8 (openssl pkcs8 -topk8 -in OLD -out NEW)"

_ALGORITHMS: Final = {
    bytes.fromhex("06092a864886f70d010101"): "RSA",
    bytes.fromhex("06072a8648ce3d0201"): "EC",
    bytes.fromhex("06032b6570"): "Ed25519",
}
"""The identifiers of key algorithms, and Java's names of them."""

_SEQUENCE: Final = b"\x30"
_ALGORITHM_WITHIN: Final = 32
"""In PKCS#8 the algorithm is within so many bytes: three lengths and a version precede it."""


class PrivateKey(NamedTuple):
    """A private key in PKCS#8. Secret."""

    text: str
    """PEM: one block."""
    is_encrypted: bool
    algorithm: str
    """RSA, EC or Ed25519; empty where the key is encrypted, or of another kind."""
    is_as_stored: bool
    """Whether its file holds it in this form, too."""


def read_file(
    field: str, path: str, open_file: Callable[[str], BufferedReader] = open_regular
) -> str:
    """Return the text of the file that setting `field` names. Raises SettingError."""
    try:
        content = read_bounded(path, _FILE_BYTES_MAX, open_file)
    except OSError as error:
        expected = f"a file that can be read ({error.strerror})"
        raise SettingError(field, path, expected) from None
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise SettingError(field, path, "a text file (PEM, not DER)") from None


def read_certificates(field: str, path: str) -> str:
    """Return the certificates of a PEM file, in its order. Raises SettingError if it has none."""
    found = [
        match[0] for match in _BLOCK.finditer(read_file(field, path)) if match[1] == _CERTIFICATE
    ]
    if not found:
        raise SettingError(field, path, "a PEM file with at least one certificate")
    return "\n".join(found) + "\n"


GivenFile = tuple[str, str]
"""The name of a setting, for errors, and its value."""


def load_authorities(context: ssl.SSLContext, authorities: GivenFile) -> None:
    """Make `context` trust the certificates of a PEM file. Raises SettingError."""
    read_certificates(*authorities)
    try:
        context.load_verify_locations(authorities[1])
    except (ssl.SSLError, OSError):
        expected = "a PEM file whose certificates are whole"
        raise SettingError(*authorities, expected) from None


def load_own_certificate(
    context: ssl.SSLContext, certificate: GivenFile, key: GivenFile, password: GivenFile
) -> None:
    """Load a client's certificate and its key; the password is empty where the key has none.

    Raises SettingError, which names the setting that does not fit, and never shows the password.
    """
    load_authorities(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), certificate)
    is_encrypted = _is_encrypted(key)
    if is_encrypted and not password[1]:
        raise SettingError(*password, f"the password of {key[0]}, which is encrypted")
    try:
        # Without a function OpenSSL would ask for a password at the terminal.
        context.load_cert_chain(certificate[1], key[1], password=lambda: password[1])
    except (ssl.SSLError, OSError) as error:
        # It gives one of several reasons for a key of another certificate, and none for all else.
        if getattr(error, "reason", None) is not None:
            raise SettingError(*key, f"the key of {certificate[0]}") from None
        if is_encrypted:
            raise SettingError(password[0], "***", f"the password of {key[0]}") from None
        raise SettingError(*key, "a private key that is whole") from None


def _is_encrypted(key: GivenFile) -> bool:
    """Return whether a PEM file holds an encrypted key. Raises SettingError where it has none."""
    for match in _BLOCK.finditer(read_file(*key)):
        if match[1].endswith(_KEY):
            return match[1] == _ENCRYPTED_KEY or "ENCRYPTED" in match[2]
    raise SettingError(*key, "a PEM file with a private key")


def read_key(field: str, path: str) -> PrivateKey:
    """Return the private key of a PEM file in PKCS#8, which Java requires.

    The package cryptography converts the older forms of OpenSSL. Raises SettingError where the file
    holds no key, an encrypted one in an old form, or an old form and the package is not installed.
    """
    for match in _BLOCK.finditer(read_file(field, path)):
        if match[1] == _ENCRYPTED_KEY:
            return PrivateKey(match[0] + "\n", True, "", True)
        if not match[1].endswith(_KEY):
            continue
        is_as_stored = match[1] == _KEY
        try:
            text = match[0] + "\n" if is_as_stored else _converted(match[0])
            return PrivateKey(text, False, _algorithm_of(text), is_as_stored)
        except (ImportError, TypeError, ValueError):  # a TypeError: it is encrypted
            raise SettingError(field, path, _CONVERT) from None
    raise SettingError(field, path, "a PEM file with a private key")


def _converted(block: str) -> str:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(block.encode(), None)
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()


def _algorithm_of(text: str) -> str:
    """Return the algorithm of a key in PKCS#8. Raises ValueError if it is no key."""
    _, body = _BLOCK.findall(text)[0]
    start = base64.b64decode("".join(body.split()), validate=True)[:_ALGORITHM_WITHIN]
    if not start.startswith(_SEQUENCE):
        raise ValueError("not in PKCS#8")
    return next((name for mark, name in _ALGORITHMS.items() if mark in start), "")
