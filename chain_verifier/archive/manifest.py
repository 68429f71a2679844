"""The manifest of an archived chain: it lies beside its files, and is replaced as a whole."""

from __future__ import annotations

import fcntl
import os
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, overload

import msgspec
from msgspec import Meta, Struct

from chain_kernel.errors import InputError
from chain_kernel.files import read_bounded
from chain_kernel.limits import ID_MAX
from chain_kernel.text import reason_of
from chain_verifier.places import move, open_to_read, sync_file, sync_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chain_verifier.places import Place, UrlPlace

VERSION: Final = 1

_NAME: Final = "_manifest.json"
"""Begins with `_`, as the folder of batches does: readers of Parquet skip such names."""

_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of a manifest: of 80,000 parts, each of which is a partition of the database."""

_Id = Annotated[int, Meta(ge=0, le=ID_MAX)]
_Sha = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
_Name = Annotated[str, Meta(pattern="^[a-z_]+(/[a-z]+)?-[0-9]+-[0-9]+[.]parquet$")]


class StoredFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of an archive."""

    name: _Name
    """Below the chain's folder."""
    bytes: int
    sha256: _Sha


class ArchivePart(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Consecutive batches of one partition of the database, in two files."""

    after_id: _Id
    """The row before its first; 0 for the beginning of the chain."""
    first_id: _Id
    last_id: _Id
    row_count: _Id
    batch_count: _Id
    seal_before: _Sha
    seal_after: _Sha
    rows: StoredFile
    batches: StoredFile


class Manifest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every part of one chain, in the order of ids."""

    version: Annotated[int, Meta(ge=VERSION, le=VERSION)] = VERSION
    chain_id: int
    database_id: Annotated[str, Meta(pattern="^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]
    parts: tuple[ArchivePart, ...] = ()

    @property
    def last_id(self) -> int:
        """The last archived row; 0 for none."""
        return self.parts[-1].last_id if self.parts else 0


@overload
def chain_folder(archive: Path, chain_id: int) -> Path: ...


@overload
def chain_folder(archive: UrlPlace, chain_id: int) -> UrlPlace: ...


def chain_folder(archive: Place, chain_id: int) -> Place:
    """Return where an archive keeps one chain."""
    return archive / f"chain-{chain_id}"


@contextmanager
def only_writer(archive: Place, chain_id: int) -> Iterator[None]:
    """Refuse other writers of a chain's archive for a while.

    A second writer would remove the files that the first has not named in the manifest yet. An
    object store has no such lock, and that of a network file system may hold per machine only.
    Raises InputError while there is another writer, and for a place that cannot be used.
    """
    folder = chain_folder(archive, chain_id)
    with ExitStack() as held:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if isinstance(folder, Path):
                descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
                held.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError("archive", str(folder), "no other run that writes to it") from None
        except OSError as error:
            expected = f"a folder that can be used ({error.strerror or reason_of(error)})"
            raise InputError("archive", str(folder), expected) from error
        yield


def load_manifest(archive: Place, chain_id: int) -> Manifest | None:
    """Return the manifest of a chain; None if the chain was not archived.

    Raises InputError for a manifest that cannot be read or is of another chain.
    """
    path = chain_folder(archive, chain_id) / _NAME
    try:
        text = read_bounded(path, _BYTES_MAX, open_to_read)
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = error.strerror or reason_of(error)
        raise InputError("archive", str(path), f"a readable file ({reason})") from error
    try:
        manifest = msgspec.json.decode(text, type=Manifest)
    except (ValueError, RecursionError) as error:
        raise InputError("archive", str(path), f"a manifest ({reason_of(error)})") from error
    if manifest.chain_id != chain_id:
        raise InputError("archive", f"chain {manifest.chain_id}", f"chain {chain_id}")
    return manifest


def held_manifest(archive: Place, chain_id: int) -> Manifest:
    """Return the manifest of a chain that has parts. Raises InputError."""
    manifest = load_manifest(archive, chain_id)
    if manifest is None or not manifest.parts:
        raise InputError("archive", str(archive), f"an archive that holds chain {chain_id}")
    return manifest


def store_manifest(archive: Place, manifest: Manifest) -> None:
    """Replace the previous manifest, as a whole and durably."""
    folder = chain_folder(archive, manifest.chain_id)
    draft = folder / f"{_NAME}.part"
    with draft.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(manifest), indent=2))
    sync_file(draft)
    move(draft, folder / _NAME)
    sync_folder(folder)


def remove_unfinished(archive: Place, manifest: Manifest) -> None:
    """Remove the files of a part that was written, but never added to the manifest.

    It removes only files after the last archived row: they are written again. Raises InputError for
    another file that the manifest does not name, since it may be the only copy of its rows.
    """
    folder = chain_folder(archive, manifest.chain_id)
    named = {stored.name for part in manifest.parts for stored in (part.rows, part.batches)}
    for path in sorted([*folder.glob("rows-*.parquet"), *folder.glob("_batches/*.parquet")]):
        name = str(path.relative_to(folder))
        if name in named:
            continue
        _, _, span = path.name.partition("-")
        after_id, _, _ = span.partition("-")
        is_number = after_id.isascii() and after_id.isdecimal()
        if not is_number or int(after_id) < manifest.last_id:
            raise InputError("archive", str(path), "a file that the manifest names")
        path.unlink()


def begin_manifest(archive: Place, chain_id: int, database_id: str) -> Manifest:
    """Return the manifest of a chain; an empty one if the chain was not archived yet.

    The manifest is stored before any part. So files without a manifest are an archive that lost its
    manifest, and no new archive can begin there. Raises InputError for such files.
    """
    manifest = load_manifest(archive, chain_id)
    if manifest is None:
        folder = chain_folder(archive, chain_id)
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.glob("rows-*.parquet")):
            raise InputError("archive", str(folder), "a manifest beside its files")
        manifest = Manifest(chain_id=chain_id, database_id=database_id)
        store_manifest(archive, manifest)
    return manifest
