"""PEM files: certificates and private keys."""

from __future__ import annotations

import re
import ssl
from typing import TYPE_CHECKING, Final

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
