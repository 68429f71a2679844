"""What the stack remembers between two commands: ports, passwords, and which processes are its
own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from local_stack.errors import FolderUnusable
from local_stack.folders import write_file
from local_stack.process import ProcessIdentity
from orderchain.reasons import reason_of

if TYPE_CHECKING:
    from pathlib import Path

FORMAT: Final = 1


class StackState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the state file."""

    format: int = FORMAT
    postgres_port: int
    kafka_port: int
    kafka_controller_port: int
    passwords: dict[str, str]
    """Role -> password, the superuser's among them."""
    postgres: ProcessIdentity | None = None
    """The process last started; whether it still runs is for the system to say."""
    kafka: ProcessIdentity | None = None

    def __repr__(self) -> str:
        """Without the passwords, which must not reach a log."""
        return f"StackState(postgres_port={self.postgres_port}, kafka_port={self.kafka_port})"


def load_state(path: Path) -> StackState | None:
    """Read the state file; None when there is none.

    Raises:
        FolderUnusable: it belongs to somebody else, or is not ours to understand.
    """
    try:
        state = msgspec.json.decode(path.read_bytes(), type=StackState)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FolderUnusable(f"cannot read {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise FolderUnusable(
            f"{path} is damaged or of another version ({reason_of(error)})"
        ) from error
    if state.format != FORMAT:
        raise FolderUnusable(f"{path} has format {state.format}, expected {FORMAT}")
    return state


def save_state(path: Path, state: StackState) -> None:
    """Write the state file as a whole, readable for its owner only."""
    text = msgspec.json.format(msgspec.json.encode(state), indent=2).decode("utf-8")
    try:
        write_file(path, text + "\n", 0o600)
    except OSError as error:
        raise FolderUnusable(f"cannot write {path}: {error.strerror}") from error
