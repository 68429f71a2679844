from __future__ import annotations

import gzip
import lzma
from typing import TYPE_CHECKING, Any, Protocol

import pytest
import zstandard

from chain_kernel.errors import InputError
from sequencer.intake.file import FileOptions, OrderFile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sequencer import Order

COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda content: content,
    ".gz": gzip.compress,
    ".xz": lambda content: lzma.compress(content, preset=0),
    ".zst": zstandard.compress,
}


class Write(Protocol):
    """Writes a file, compressed as its name says, and returns its path."""

    def __call__(self, name: str, content: str | bytes) -> Path: ...


class ReadAll(Protocol):
    """Reads a file to its end, or to its fault: the orders before it, and the fault."""

    def __call__(
        self, path: Path, limit: int = 1_000, **options: Any
    ) -> tuple[list[Order], InputError | None]: ...


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        data = content.encode() if isinstance(content, str) else content
        path.write_bytes(COMPRESSORS.get(path.suffix, COMPRESSORS[""])(data))
        return path

    return write_file


@pytest.fixture
def read_all() -> ReadAll:
    def read(
        path: Path, limit: int = 1_000, **options: Any
    ) -> tuple[list[Order], InputError | None]:
        orders: list[Order] = []
        try:
            with OrderFile(path, FileOptions(**options)) as intake:
                while (portion := intake.read(limit)) is not None:
                    assert 0 < len(portion.orders) <= limit
                    orders += portion.orders
                    assert portion.mark.position == len(orders)
        except InputError as error:
            return orders, error
        return orders, None

    return read
