"""What the kernel promises as a package: its names, its bounds, and how little it needs."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import subprocess
import sys
from typing import Any

import msgspec
import pytest

import chain_kernel
from chain_kernel import frame, limits, seal, sql
from chain_kernel.model import Event

MODULES = sorted(module.name for module in pkgutil.iter_modules(chain_kernel.__path__))

PUBLIC = {
    "clock": "Backoff Clock SystemClock jittered_seconds ns_of record_time step_seconds time_of",
    "config": "CheckedNames Config checked_text expected_of mask_dsn",
    "files": "FoundRow JournalEnd JournalRow found_row journal_end lines_of no_row open_regular "
    "private_opener read_bounded write_private written_row",
    "frame": "FrameHeader decode_body decode_header decode_linked_body default_topic encode_frame "
    "is_signed topic_refusal",
    "model": "ChainHead ClientNumber Event FrameTerm Gap IntakeMark IntakeReject KeyPage "
    "LeaseSight Mark Run Snapshot Standing Term client_key first_break is_linked split_client_key",
    "ports": "ArchivedSource ChainStore CheckpointStore Closable FrameSink FrameSource GapSource "
    "KeyStore Lease PendingCommit PlaceFinder RecordSource "
    "SnapshotStore SourceRecord",
    "seal": "Batch PageImage column_pages committed_at_of content_of event_pages genesis_seal "
    "is_linked_page next_seal page_events page_image seal_over",
    "sql": "load_sql parse_sql renumbering require_version schema_sql",
    "tasks": "uninterrupted",
    "text": "SummedLog counted not_installed printable reason_in_chain reason_of silent",
}


def public_names(module: str) -> set[str]:
    """Return the classes and functions that `module` itself defines for others."""
    found = importlib.import_module(f"chain_kernel.{module}")
    return {
        name
        for name, value in vars(found).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == found.__name__
    }


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_of_the_module_are_these(module: str) -> None:
    assert public_names(module) == set(PUBLIC[module].split())


@pytest.mark.parametrize("module", MODULES)
def test_public_name_has_a_docstring(module: str) -> None:
    found = importlib.import_module(f"chain_kernel.{module}")
    assert found.__doc__
    assert [name for name in public_names(module) if not vars(found)[name].__doc__] == []


def test_kernel_needs_msgspec_and_blake3_alone() -> None:
    program = (
        "import sys; before = set(sys.modules)\n"
        f"for name in {MODULES!r}: __import__('chain_kernel.' + name)\n"
        "loaded = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(*loaded - set(sys.stdlib_module_names))"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    # msgspec uses typing_extensions where it is installed, and does not need it.
    assert set(done.stdout.split()) - {"typing_extensions"} == {"chain_kernel", "msgspec", "blake3"}


# ---------------------------------------------------------------------------------------- limits


def test_limits_fit_the_columns_of_postgresql() -> None:
    assert limits.ID_MAX == 2**63 - 1
    assert limits.CHAIN_ID_MAX == 2**31 - 1


def test_limits_let_the_largest_row_into_the_smallest_frame() -> None:
    largest = Event(
        limits.ID_MAX,
        limits.ID_MAX - 1,
        "k" * limits.KEY_BYTES_MAX,
        -(2**63),
        bytes(limits.PAYLOAD_BYTES_MAX),
    )
    size = frame.HEADER_BYTES + len(msgspec.msgpack.encode([largest]))
    assert size <= limits.FRAME_BYTES_MIN <= limits.FRAME_BYTES_MAX


def test_limits_of_the_event_are_those_of_the_protocol() -> None:
    def bound(field: str) -> dict[str, Any]:
        types = msgspec.json.schema(Event)["$defs"]["Event"]["prefixItems"]
        return dict(types[Event.__struct_fields__.index(field)])

    # Those of id and pid are proven by the links; see test_frame_refusals.
    assert (bound("key")["minLength"], bound("key")["maxLength"]) == (1, limits.KEY_BYTES_MAX)


@pytest.mark.parametrize("name", [name for name in vars(limits) if name.isupper()])
def test_limit_states_its_reason(name: str) -> None:
    _, _, behind = inspect.getsource(limits).partition(f"{name}: Final = ")
    assert behind.split("\n")[1].startswith('"""')


# ------------------------------------------------------------------------------- smaller modules


def test_seal_and_nonce_have_the_sizes_of_the_wire() -> None:
    assert (seal.SEAL_BYTES, frame.NONCE_BYTES, frame.HEADER_BYTES) == (32, 16, 156)


def test_default_topic_names_the_chain() -> None:
    assert frame.default_topic(2**31 - 1) == "orderchain.2147483647"


def test_schema_is_found_and_has_the_version_that_the_code_expects() -> None:
    _, found, behind = sql.schema_sql().partition("INSERT INTO schema_version (version) VALUES (")
    assert found
    assert behind.startswith(f"{sql.SCHEMA_VERSION});")


def test_roles_are_those_that_the_schema_makes() -> None:
    text = sql.schema_sql()
    assert sql.OWNER == "orderchain_owner"
    assert f"CREATE ROLE {sql.OWNER} NOLOGIN;" in text
    assert "ARRAY[" + ", ".join(f"'{role}'" for role in sql.LOGIN_ROLES) + "]" in text
