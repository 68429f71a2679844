from pathlib import Path

import pytest

from chainctl.late_commits import Late, files_of, look_for_late_commits, write_back

IDENTIFIER = 7_312_345_678_901_234_567
UNSEEN = "cannot see: the server's files are not here, or not for this user and login"


class Server:
    """Answers with the settings of its log."""

    def __init__(self, method: str, min_wal_bytes: int, directory: str | None) -> None:
        self.row = {
            "sync_method": method, "min_wal_bytes": min_wal_bytes, "directory": directory,
            "identifier": IDENTIFIER,
        }  # fmt: skip

    async def fetchrow(self, _: str) -> dict[str, object]:
        return self.row


def make_folder(folder: Path, identifier: int = IDENTIFIER) -> Path:
    for name in ("base", "pg_wal", "global"):
        (folder / name).mkdir()
    (folder / "global/pg_control").write_bytes(identifier.to_bytes(8, "little") + bytes(8))
    return folder


async def late(*settings: object) -> dict[str, Late]:
    found = await look_for_late_commits(Server(*settings))  # type: ignore[arg-type]
    return {each.what.removeprefix("commit: "): each for each in found}


async def test_settings_of_the_log_are_judged_and_files_elsewhere_are_not_guessed_at() -> None:
    slow = await late("fsync", 80 * 2**20, None)
    assert slow["flush"].to_do.startswith("wal_sync_method = fdatasync")
    assert slow["log files"].found == "min_wal_size is 80 MiB"
    assert slow["log files"].to_do
    assert slow["log disk"] == Late("commit: log disk", UNSEEN)
    assert slow["write-back"] == Late("commit: write-back", UNSEEN)
    well = await late("open_datasync", 4 * 2**30, None)
    assert not any(each.to_do for each in well.values())


async def test_what_was_measured_to_help_nothing_is_named_without_advice(tmp_path: Path) -> None:
    found = await late("fdatasync", 2**30, str(make_folder(tmp_path)))
    assert found["log disk"].found == "pg_wal is on the file system of the tables"
    assert not any(each.to_do for each in found.values())


def test_folder_of_another_server_is_not_looked_at(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, IDENTIFIER + 1)
    assert files_of({"directory": str(folder), "identifier": IDENTIFIER}) is None
    assert files_of({"directory": str(folder), "identifier": IDENTIFIER + 1}) == folder
    assert files_of({"directory": "/nowhere", "identifier": IDENTIFIER}) is None


@pytest.mark.parametrize(
    ("size", "ratio", "found"),
    [
        (0, 10, "the kernel lets 2,400 MiB gather before it writes"),
        (256 * 2**20, 0, "the kernel lets 256 MiB gather before it writes"),
        ("what", 0, UNSEEN),
    ],
)
def test_bytes_go_before_the_ratio(tmp_path: Path, size: object, ratio: int, found: str) -> None:
    (tmp_path / "sys/vm").mkdir(parents=True)
    (tmp_path / "sys/vm/dirty_background_bytes").write_text(f"{size}\n")
    (tmp_path / "sys/vm/dirty_background_ratio").write_text(f"{ratio}\n")
    (tmp_path / "meminfo").write_text(f"MemTotal:  {24_000 * 1_024} kB\nMemFree: 1 kB\n")
    assert write_back(tmp_path) == Late("commit: write-back", found)
