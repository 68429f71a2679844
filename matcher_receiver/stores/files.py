"""Snapshots of a service's state as files in a folder: whole ones only, the newest first.

    chain-7-0000000000000000042.snapshot

A file is the eight bytes `OCSNAP1\n`, the MessagePack array `[chain_id, id, batch_last_id, seal,
epoch, state]`, and the SHA-256 of all that. It is written under another name, forced to the disk,
and only then renamed: a crash leaves either the whole file or none of that name. The SHA-256 shows
what a disk tears or flips nevertheless.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from chain_kernel.errors import SettingError
from chain_kernel.files import private_opener
from chain_kernel.limits import CHAIN_ID_MAX, ID_MAX
from chain_kernel.model import Mark, Snapshot
from chain_kernel.seal import SEAL_BYTES
from chain_kernel.text import counted, printable, reason_of

_log = logging.getLogger(__name__)

MAGIC: Final = b"OCSNAP1\n"
_DIGEST_BYTES: Final = 32
_WRITING: Final = ".writing"

STATE_BYTES_MAX: Final = 1024 * 1024 * 1024
"""A state is held in memory twice while it is written or read; a larger file is some other file."""

_Id = Annotated[int, Meta(ge=0, le=ID_MAX)]


class _Content(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The content of a file."""

    chain_id: Annotated[int, Meta(ge=1, le=CHAIN_ID_MAX)]
    id: _Id
    batch_last_id: _Id
    seal: Annotated[bytes, Meta(min_length=SEAL_BYTES, max_length=SEAL_BYTES)]
    epoch: _Id
    state: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Content).decode


class FileSnapshotStore:
    """Implements `chain_kernel.ports.SnapshotStore` over a folder, for one chain and one writer.

    `save` returns once the snapshot would survive a power cut and older ones beyond `kept` are
    removed. `newest` returns the newest one that is whole; those that are not are logged, are in
    `broken`, and stay where they are. Both work in a thread.
    """

    def __init__(self, folder: Path | str, chain_id: int, *, kept: int = 3) -> None:
        """Keep snapshots in `folder`, the newest `kept` of them.

        Raises:
            SettingError: the folder is not there, or `kept` is below 1.
        """
        if kept < 1:
            raise SettingError("kept", kept, "at least 1 snapshot")
        self._folder = Path(folder)
        if not self._folder.is_dir():  # perhaps a volume that is not mounted: it is not made here
            raise SettingError("folder", str(folder), "a folder that exists")
        self._chain_id = chain_id
        self._kept = kept
        self._name = re.compile(rf"chain-{chain_id}-([0-9]{{19}})\.snapshot")
        self.broken: list[Path] = []
        """Files that the last `newest` could not use, the newest first."""

    @property
    def chain_id(self) -> int:
        """The chain whose snapshots it keeps."""
        return self._chain_id

    async def newest(self, until_id: int = ID_MAX) -> Snapshot | None:
        """Return the newest whole snapshot up to the row `until_id`, None if there is none.

        Raises:
            SettingError: there are some, and none is whole: to begin without a state, move them
                away.
            OSError: the folder cannot be read.
        """
        return await asyncio.to_thread(self._newest, until_id)

    async def save(self, snapshot: Snapshot) -> None:
        """Store `snapshot` durably.

        Make a checkpoint that goes with it, or a report, after it: rows that only the reported
        place has passed may be archived, and a start from the snapshot would miss them.

        Raises:
            SettingError: the state is too large.
            OSError: it cannot be written.
        """
        if len(snapshot.state) > STATE_BYTES_MAX:
            expected = f"at most {STATE_BYTES_MAX} bytes"
            raise SettingError("state", f"{len(snapshot.state)} bytes", expected)
        await asyncio.to_thread(self._save, snapshot)

    # -- in a thread ---------------------------------------------------------------------------

    def _newest(self, until_id: int) -> Snapshot | None:
        self.broken = []
        for at_id, path in self._found():
            if at_id > until_id:
                continue
            try:
                return self._read(path)
            except FileNotFoundError:
                continue  # a service that runs has removed it since: it has stored newer ones
            except ValueError as error:
                self.broken.append(path)
                _log.error("snapshot %s is broken: %s", printable(path), reason_of(error))
        if self.broken:
            expected = f"a whole snapshot of chain {self._chain_id} ({len(self.broken)} are broken)"
            raise SettingError("snapshots", str(self._folder), expected)
        return None

    def _found(self) -> list[tuple[int, Path]]:
        """Return id and path of each snapshot of the chain, the newest first."""
        named = ((self._name.fullmatch(path.name), path) for path in self._folder.iterdir())
        return sorted(
            ((int(name[1]), path) for name, path in named if name and path.is_file()), reverse=True
        )

    def _read(self, path: Path) -> Snapshot:
        """Return what `path` holds. Raises ValueError for a file that is torn or misnamed."""
        content = _content_of(path)
        if path.name != self._name_of(content.chain_id, content.id):
            raise ValueError(f"it holds chain {content.chain_id} at {content.id}")
        mark = Mark(
            id=content.id,
            batch_last_id=content.batch_last_id,
            seal=content.seal,
            epoch=content.epoch,
        )
        return Snapshot(mark=mark, state=content.state)

    def _save(self, snapshot: Snapshot) -> None:
        mark = snapshot.mark
        body = MAGIC + _encode(
            _Content(
                self._chain_id, mark.id, mark.batch_last_id, mark.seal, mark.epoch, snapshot.state
            )
        )
        path = self._folder / self._name_of(self._chain_id, mark.id)
        writing = path.with_name(f"{path.name}.{os.getpid()}{_WRITING}")
        try:
            with open(writing, "wb", opener=private_opener) as file:
                file.write(body)
                file.write(sha256(body).digest())
                file.flush()
                os.fsync(file.fileno())
            writing.replace(path)
        except BaseException:
            writing.unlink(missing_ok=True)
            raise
        _sync_folder(self._folder)
        self._remove_old(mark.id)

    def _remove_old(self, saved_id: int) -> None:
        """Remove all but the last `kept` snapshots up to the one just saved.

        Newer ones are left alone: they were found broken, or the service would not be before them,
        and must not displace whole ones.
        """
        old = [path for at_id, path in self._found() if at_id <= saved_id][self._kept :]
        torn = [
            path
            for path in self._folder.glob(f"chain-{self._chain_id}-*{_WRITING}")
            if not path.name.endswith(f".{os.getpid()}{_WRITING}")
        ]
        for path in (*old, *torn):
            path.unlink(missing_ok=True)

    @staticmethod
    def _name_of(chain_id: int, at_id: int) -> str:
        return f"chain-{chain_id}-{at_id:019d}.snapshot"


def _content_of(path: Path) -> _Content:
    """Return what a file holds. Raises ValueError unless every byte of it is as it was written."""
    size = path.stat().st_size
    if size > STATE_BYTES_MAX + 1024:
        raise ValueError(f"it has {counted(size, 'byte')}")
    data = path.read_bytes()
    body = memoryview(data)[:-_DIGEST_BYTES]
    if not data.startswith(MAGIC):
        raise ValueError("it is no snapshot of this version")
    if sha256(body).digest() != data[-_DIGEST_BYTES:]:
        raise ValueError("it is torn: its SHA-256 is another one")
    return _decode(body[len(MAGIC) :])


def _sync_folder(folder: Path) -> None:
    """Make the name of a new file survive a power cut too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
