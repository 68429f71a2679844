import gzip
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest
import zstandard

from chain_kernel.errors import InputError
from sequencer import Order
from sequencer.intake.order_file import FileOptions, OrderFile

COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".xz": lambda content: lzma.compress(content, preset=0),
    ".zst": zstandard.compress,
}


class Write(Protocol):
    """Writes a file, compressed as its name says, and returns its path."""

    def __call__(self, name: str, content: str | bytes) -> Path: ...


class ReadAll(Protocol):
    """Writes a file and reads it to its end, or to its fault: the orders before it, and that."""

    def __call__(
        self, name: str, content: str | bytes | None, limit: int = 1_000, **options: Any
    ) -> tuple[list[Order], InputError | None]: ...


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        data = content.encode() if isinstance(content, str) else content
        path.write_bytes(COMPRESSORS.get(path.suffix, bytes)(data))
        return path

    return write_file


@pytest.fixture
def read(write: Write, tmp_path: Path) -> ReadAll:
    def read_all(
        name: str, content: str | bytes | None, limit: int = 1_000, **options: Any
    ) -> tuple[list[Order], InputError | None]:
        path = tmp_path / name if content is None else write(name, content)
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

    return read_all
