"""The lines of a question on disk: each repeat of an arm is saved when it ends, by itself."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from benchmarks.question import Line

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_ROOT = Path(__file__).parent.parent
_ENGINE = ("orderchain", "sequencer", "matcher_receiver", "gapfill")


def engine_fingerprint() -> str:
    """Return a fingerprint of the state of the engine's code, committed or not."""
    found = hashlib.sha256()
    for package in _ENGINE:
        for path in sorted((_ROOT / package).rglob("*")):
            if path.suffix in (".py", ".sql"):
                found.update(path.relative_to(_ROOT).as_posix().encode() + b"\0")
                found.update(path.read_bytes())
    found.update((_ROOT / "schema.sql").read_bytes())
    return found.hexdigest()[:12]


class ArmLog:
    """The lines of one question, in `FOLDER/QUESTION.jsonl`."""

    def __init__(self, folder: Path, question: str) -> None:
        self.path = folder / f"{question}.jsonl"
        self.lines: list[Line] = []

    def begin(self, *, resumes: bool, engine: str) -> int:
        """Read what is there, to go on with it, or start over; return how many lines were left out.

        Lines of another engine are of no use: a comparison is of one state of the code. Failed ones
        are rerun.
        """
        found = read_lines(self.path) if resumes else []
        same = found if all(line.engine == engine for line in found) else []
        self.lines = [line for line in same if line.failure is None]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._write(self.lines)
        return len(found) - len(same)

    def keep_only(self, settings: Mapping[str, object]) -> int:
        """Leave out lines of arms that have other `settings` now, by arm; return how many.

        A quick run sends fewer orders through an arm of the same name.
        """
        same = [
            line for line in self.lines if settings.get(line.arm, line.settings) == line.settings
        ]
        left_out = len(self.lines) - len(same)
        if left_out:
            self.lines = same
            self._write(same)
        return left_out

    def has(self, arm: str, repeat: int) -> bool:
        """Return whether this repeat was saved, or its arm skipped."""
        return any(
            line.arm == arm and (line.repeat == repeat or line.skipped is not None)
            for line in self.lines
        )

    def add(self, line: Line) -> None:
        """Save a line. It is on disk when this returns."""
        self.lines.append(line)
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")

    def _write(self, lines: Iterable[Line]) -> None:
        new = self.path.with_suffix(".new")
        new.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
        new.replace(self.path)


def read_lines(path: Path) -> list[Line]:
    """Return the lines of a file; a last one that was cut off by a crash is left out."""
    if not path.is_file():
        return []
    found = []
    for text in path.read_bytes().splitlines():
        try:
            found.append(msgspec.json.decode(text, type=Line))
        except msgspec.DecodeError:
            continue
    return found
