"""Seals outside the database: one small file per exported seal, signed if a key is given.

The signature (Ed25519) covers `SealFile.signed_text`, plain lines that a person can read aloud. The
format is in `docs/seal.md`.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final
from uuid import UUID

import msgspec
from msgspec import Meta, Struct

from chain_kernel.errors import InputError, RetryError, SettingError
from chain_kernel.files import PRIVATE_MODE, read_bounded
from chain_kernel.limits import CHAIN_ID_MAX, ID_MAX
from chain_kernel.text import reason_of
from chain_verifier.config import KeptSeal

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

VERSION: Final = 1

_FILE_BYTES_MAX: Final = 64 * 1024
"""Bytes of a file of a seal or of a key; a signed seal has some 700."""

_NO_FOLDER: Final = {
    errno.EACCES, errno.EEXIST, errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR, errno.EPERM,
    errno.EROFS,
}  # fmt: skip
"""Errors that do not pass by themselves, such as a full disk."""

_Hex32 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
_Hex64 = Annotated[str, Meta(pattern="^[0-9a-f]{128}$")]


class SealFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One exported seal."""

    version: Annotated[int, Meta(ge=VERSION, le=VERSION)]
    chain_id: Annotated[int, Meta(ge=1, le=CHAIN_ID_MAX)]
    id: Annotated[int, Meta(ge=0, le=ID_MAX)]
    """The last row that the seal covers."""
    seal: _Hex32
    committed_at: str
    """When that row was committed, by the sequencer's clock, in UTC."""
    database_id: str
    exported_at: str
    """When it was exported, by the exporting machine's clock, in UTC."""
    exported_by: str
    public_key: _Hex32 | None = None
    """The Ed25519 public key that the signature belongs to."""
    signature: _Hex64 | None = None

    @property
    def name(self) -> str:
        """The name of its file: they sort by chain and id."""
        return f"seal-{self.chain_id}-{self.id:019d}.json"

    @property
    def signed_text(self) -> str:
        """Fields that a signature covers: all but the key and the signature."""
        return (
            f"orderchain seal {self.version}\nchain {self.chain_id}\nid {self.id}\n"
            f"seal {self.seal}\ncommitted {self.committed_at}\ndatabase {self.database_id}\n"
            f"exported {self.exported_at}\nby {self.exported_by}\n"
        )

    def kept(self) -> KeptSeal:
        """Return the seal as a verification takes it."""
        return KeptSeal(
            id=self.id,
            seal=bytes.fromhex(self.seal),
            committed_at=self.committed_at,
            exported_at=self.exported_at,
        )


def encoded(seal: SealFile) -> bytes:
    """Return the content of the seal's file: one JSON object, one field per line."""
    return msgspec.json.format(msgspec.json.encode(seal), indent=2) + b"\n"


def store(folder: Path, seal: SealFile) -> Path:
    """Write the seal's file into `folder`, whole or not at all.

    Raises SettingError where that is no folder to write to, RetryError where the disk fails.
    """
    path = folder / seal.name
    unfinished = folder / f".{seal.name}.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        with os.fdopen(descriptor, "wb") as file:
            file.write(encoded(seal))
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        # The name itself must survive a power cut, too.
        directory = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        if error.errno in _NO_FOLDER:
            expected = f"a folder to write to ({error.strerror})"
            raise SettingError("--store", folder, expected) from error
        raise RetryError(f"{folder}: {error.strerror}") from error
    finally:
        with suppress(OSError):
            unfinished.unlink()
    return path


def new_key(path: Path) -> str:
    """Make a private key in a new file that only its user reads; return the public key.

    Raises SettingError where the file is there or cannot be written.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_MODE)
    except OSError as error:
        raise SettingError("FILE", path, f"a file to be created ({error.strerror})") from error
    with os.fdopen(descriptor, "w") as file:
        file.write(key.private_bytes_raw().hex() + "\n")
    return key.public_key().public_bytes_raw().hex()


def read_signing_key(path: Path) -> Ed25519PrivateKey:
    """Return the private key in the file `path`. Raises SettingError."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    try:
        text = read_bounded(path, _FILE_BYTES_MAX).decode("ascii").strip()
        return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(text))
    except OSError as error:
        raise SettingError("--sign", path, f"a file to read ({error.strerror})") from error
    except ValueError as error:
        raise SettingError("--sign", path, "a key that `seal key` made") from error


def signed(seal: SealFile, key: Ed25519PrivateKey) -> SealFile:
    """Return the seal with the signature of `key`."""
    return msgspec.structs.replace(
        seal,
        public_key=key.public_key().public_bytes_raw().hex(),
        signature=key.sign(seal.signed_text.encode()).hex(),
    )


def load(path: Path, public_keys: Collection[str] = ()) -> SealFile:
    """Return the seal in a file, its signature checked.

    With `public_keys`, one of them must have signed it. Raises InputError, which names the file.
    """
    try:
        seal = msgspec.json.decode(read_bounded(path, _FILE_BYTES_MAX), type=SealFile)
    except OSError as error:
        raise InputError("seal file", path, f"a file to read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        reason = reason_of(error)
        raise InputError("seal file", path, f"an exported seal ({reason})") from error
    if public_keys and seal.public_key not in public_keys:
        raise InputError(f"public_key of {path}", seal.public_key, f"{' or '.join(public_keys)}")
    if (seal.signature is None) != (seal.public_key is None):
        raise InputError(f"signature of {path}", seal.signature, "one beside every public key")
    if seal.signature is not None and not _is_signed(seal):
        raise InputError(f"signature of {path}", seal.signature[:16], "one that its key has made")
    _check_values(path, seal)
    return seal


def _check_values(path: Path, seal: SealFile) -> None:
    for name in ("committed_at", "exported_at"):
        time = getattr(seal, name)
        try:
            has_zone = datetime.fromisoformat(time).tzinfo is not None
        except ValueError:
            has_zone = False
        if not has_zone:
            raise InputError(f"{name} of {path}", time, "a time with its zone")
    try:
        UUID(seal.database_id)
    except ValueError:
        raise InputError(f"database_id of {path}", seal.database_id, "a UUID") from None


def stored(folder: Path, chain_id: int | None = None) -> list[Path]:
    """Return the files of exported seals, of a chain or of all, by name.

    Raises InputError where there is none, and where the folder cannot be read.
    """
    of, chain = ("", "*") if chain_id is None else (f" of chain {chain_id}", chain_id)
    try:
        paths = sorted(folder.glob(f"seal-{chain}-*.json"))
    except OSError as error:
        raise InputError("seals", folder, f"a folder to read ({error.strerror})") from error
    if not paths:
        raise InputError("seals", folder, f"a folder with exported seals{of}")
    return paths


def load_all(folder: Path, chain_id: int, public_keys: Collection[str] = ()) -> list[SealFile]:
    """Return the seals of a chain in a folder, by id. Raises InputError for a bad file, and where
    there is none at all: then nothing would be proven.
    """
    paths = stored(folder, chain_id)
    seals = [load(path, public_keys) for path in paths]
    for path, seal in zip(paths, seals, strict=True):
        if path.name != seal.name:
            raise InputError("seal file", path, f"the name {seal.name}")
    return seals


def export_age_seconds(seal: SealFile) -> float:
    """Return how long ago the seal was exported, by both machines' clocks; 0 for a future time."""
    exported = datetime.fromisoformat(seal.exported_at)
    return max((datetime.now(UTC) - exported).total_seconds(), 0.0)


def _is_signed(seal: SealFile) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(seal.public_key or ""))
    try:
        key.verify(bytes.fromhex(seal.signature or ""), seal.signed_text.encode())
    except InvalidSignature:
        return False
    return True
