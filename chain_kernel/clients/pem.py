"""PEM files: certificates and private keys as text, and keys in the one form that Java reads."""

from __future__ import annotations

import base64
import binascii
import re
import ssl
from typing import Final, NamedTuple

from chain_kernel.errors import SettingError
from chain_kernel.files import read_bounded

_FILE_BYTES_MAX: Final = 4 * 2**20
"""A whole bundle of a system's authorities has a quarter of a megabyte."""

_BLOCK: Final = re.compile(
    r"-----BEGIN ([A-Z0-9 ]+)-----\s+(.*?)-----END \1-----", re.ASCII | re.DOTALL
)
_CERTIFICATE: Final = "CERTIFICATE"
_KEY: Final = "PRIVATE KEY"
_ENCRYPTED_KEY: Final = "ENCRYPTED PRIVATE KEY"
_CONVERT: Final = "a key in PKCS#8 (openssl pkcs8 -topk8 -in OLD -out NEW)"

_RSA: Final = bytes.fromhex("06092a864886f70d010101")
_EC: Final = bytes.fromhex("06072a8648ce3d0201")
_ED25519: Final = bytes.fromhex("06032b6570")
_NULL: Final = bytes.fromhex("0500")
_ALGORITHMS: Final = {_RSA: "RSA", _EC: "EC", _ED25519: "Ed25519"}
"""The identifiers of key algorithms in DER, and Java's names of them."""

_INTEGER: Final = 0x02
_OCTET_STRING: Final = 0x04
_SEQUENCE: Final = 0x30
_EC_PARAMETERS: Final = 0xA0


class PrivateKey(NamedTuple):
    """A private key in PKCS#8. Secret."""

    text: str
    """PEM: one block."""
    is_encrypted: bool
    algorithm: str
    """RSA, EC or Ed25519; empty where the key is encrypted, or of another kind."""
    is_as_stored: bool
    """Whether its file holds it in this form, too."""


def read_file(field: str, path: str) -> str:
    """Return the text of the file that setting `field` names. Raises SettingError."""
    try:
        content = read_bounded(path, _FILE_BYTES_MAX)
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

    The older forms of OpenSSL for RSA and EC are wrapped. Raises SettingError where the file holds
    no key, or an encrypted one in an old form.
    """
    for match in _BLOCK.finditer(read_file(field, path)):
        label, body = match[1], match[2]
        if label == _ENCRYPTED_KEY:
            return PrivateKey(match[0] + "\n", True, "", True)
        if not label.endswith(_KEY):
            continue
        try:
            der = base64.b64decode("".join(body.split()), validate=True)
            return _unencrypted(label, der)
        except (binascii.Error, IndexError, ValueError):
            # An encrypted key in an old form has headers before its body.
            raise SettingError(field, path, _CONVERT) from None
    raise SettingError(field, path, "a PEM file with a private key")


def _unencrypted(label: str, der: bytes) -> PrivateKey:
    """Return the key as PKCS#8 (RFC 5208). Raises IndexError, ValueError if it is no key."""
    if label == _KEY:
        info = der
    elif label == f"RSA {_KEY}":
        info = _wrap(_RSA + _NULL, der)
    elif label == f"EC {_KEY}":
        info = _wrap(_EC + _ec_parameters(der), der)
    else:
        raise ValueError(label)
    return PrivateKey(_pem(info), False, _algorithm_of(info), label == _KEY)


def _wrap(algorithm: bytes, key: bytes) -> bytes:
    version = _element(_INTEGER, b"\0")
    content = version + _element(_SEQUENCE, algorithm) + _element(_OCTET_STRING, key)
    return _element(_SEQUENCE, content)


def _ec_parameters(der: bytes) -> bytes:
    """Return the curve of an EC key (RFC 5915: version, key, [0] parameters, [1] public key)."""
    _, content, _ = _next_element(der)
    while content:
        tag, value, content = _next_element(content)
        if tag == _EC_PARAMETERS:
            return value
    raise ValueError("no curve")


def _algorithm_of(info: bytes) -> str:
    """Return the algorithm of a PKCS#8 key (version, SEQUENCE of algorithm, key)."""
    _, content, _ = _next_element(info)
    _, _, content = _next_element(content)
    _, algorithm, _ = _next_element(content)
    return next((name for mark, name in _ALGORITHMS.items() if algorithm.startswith(mark)), "")


def _element(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes([tag, size]) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(length)]) + length + content


def _next_element(data: bytes) -> tuple[int, bytes, bytes]:
    """Return tag and content of the first element of DER, and what follows it."""
    tag, size, start = data[0], data[1], 2
    if size & 0x80:
        start += size & 0x7F
        size = int.from_bytes(data[2:start], "big")
    if start + size > len(data):
        raise ValueError("cut off")
    return tag, data[start : start + size], data[start + size :]


def _pem(der: bytes) -> str:
    text = base64.b64encode(der).decode()
    lines = [text[at : at + 64] for at in range(0, len(text), 64)]
    return "\n".join([f"-----BEGIN {_KEY}-----", *lines, f"-----END {_KEY}-----"]) + "\n"
