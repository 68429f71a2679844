"""What the kernel promises as a package: its names, its bounds, and how little it needs."""

import pkgutil
import sys

import msgspec

import chain_kernel
from chain_kernel import frame, limits, sql
from chain_kernel.model import Event
from tests.programs import output_of

MODULES = sorted(module.name for module in pkgutil.iter_modules(chain_kernel.__path__))


def test_kernel_needs_msgspec_and_blake3_alone() -> None:
    program = (
        "import sys; before = set(sys.modules)\n"
        f"for name in {MODULES!r}: __import__('chain_kernel.' + name)\n"
        "loaded = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(*loaded - set(sys.stdlib_module_names))"
    )
    loaded = output_of(sys.executable, "-c", program).split()
    # msgspec uses typing_extensions, and the kernel orderchain_speed, where they are installed.
    not_needed = {"typing_extensions", "orderchain_speed"}
    assert set(loaded) - not_needed == {"chain_kernel", "msgspec", "blake3"}


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


def test_schema_is_found_and_has_the_version_that_the_code_expects() -> None:
    _, found, behind = sql.schema_sql().partition("INSERT INTO schema_version (version) VALUES (")
    assert found
    assert behind.startswith(f"{sql.SCHEMA_VERSION});")


def test_roles_are_those_that_the_schema_makes() -> None:
    text = sql.schema_sql()
    assert sql.OWNER == "orderchain_owner"
    assert f"CREATE ROLE {sql.OWNER} NOLOGIN;" in text
    assert "ARRAY[" + ", ".join(f"'{role}'" for role in sql.LOGIN_ROLES) + "]" in text
