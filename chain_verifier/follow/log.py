"""What a follower found, micro-batch by micro-batch, and its position: kept in a folder."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from chain_verifier.checks.topic_walk import WalkState
from orderchain.errors import InputError
from orderchain.files import private_opener
from orderchain.text import reason_of

if TYPE_CHECKING:
    from pathlib import Path

    from chain_verifier.findings import Finding


_STATE: Final = "state.json"
_FINDINGS: Final = "findings.jsonl"


class Step(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The position of a follower: the state and the findings of a step are written as one."""

    number: int
    """Spark's number of the micro-batch; it is repeated after a crash in its middle."""
    chain_id: int
    walk: WalkState
    findings_bytes: int
    """The length of the file of findings; bytes after it are of a step that did not end."""


class FollowLog:
    """One folder of one chain."""

    def __init__(self, folder: Path, chain_id: int) -> None:
        """Open or make the folder. Raises InputError when it belongs to another chain."""
        self._folder = folder
        self._chain_id = chain_id
        folder.mkdir(parents=True, exist_ok=True)
        self.step = self._read()

    @property
    def spark_folder(self) -> str:
        """Where Spark keeps its own offsets."""
        return str(self._folder / "spark")

    @property
    def findings_path(self) -> Path:
        """All findings so far, one JSON object per line."""
        return self._folder / _FINDINGS

    def is_done(self, number: int) -> bool:
        """Whether the step `number` was written: Spark repeats the last one after a crash."""
        return self.step is not None and number <= self.step.number

    def write(self, number: int, walk: WalkState, findings: list[Finding]) -> None:
        """Write a step: after a crash it is there with all its findings, or not at all."""
        begin = self.step.findings_bytes if self.step else 0
        lines = b"".join(msgspec.json.encode(finding) + b"\n" for finding in findings)
        with open(self.findings_path, "ab", opener=private_opener) as file:
            file.truncate(begin)
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
        step = Step(
            number=number,
            chain_id=self._chain_id,
            walk=walk,
            findings_bytes=begin + len(lines),
        )
        aside = self._folder / f"{_STATE}.new"
        with open(aside, "wb", opener=private_opener) as file:
            file.write(msgspec.json.encode(step))
            file.flush()
            os.fsync(file.fileno())
        aside.replace(self._folder / _STATE)
        self.step = step

    def _read(self) -> Step | None:
        path = self._folder / _STATE
        if not path.exists():
            return None
        try:
            step = msgspec.json.decode(path.read_bytes(), type=Step)
        except msgspec.DecodeError as error:
            raise InputError(
                "checkpoint", str(path), f"the state of a follower ({reason_of(error)})"
            ) from error
        if step.chain_id != self._chain_id:
            raise InputError("checkpoint", f"chain {step.chain_id}", f"chain {self._chain_id}")
        return step
