"""`chainctl archive` and `retention` on what `sequence` left behind."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Call

ROWS = 300


def test_archive_takes_what_was_verified_and_retention_refuses_to_go_further(
    call: Call, module_settings: dict[str, str], chain: int, tmp_path: Path
) -> None:
    path, folder = tmp_path / "o.csv", tmp_path / "archive"
    path.write_text("n\n" + "".join(f"{number}\n" for number in range(ROWS)))
    call("sequence", "--chain", chain, "--input", path, settings=module_settings)
    here = ("--chain", chain, "--archive", folder)
    unverified = call("archive", *here, settings=module_settings)
    assert unverified.code == 2, unverified
    assert "--since-verified sets it" in unverified.err

    since = ("--local", "--chain", chain, "--source", "database", "--since-verified")
    assert call("verify", *since, settings=module_settings).code == 0
    done = call("archive", *here, "--json", settings=module_settings)
    assert done.code == 0, done
    assert json.loads(done.out)["rows"] == ROWS
    head = json.loads(done.out)["last_id"]
    checked = call("archive", *here, "--check", settings=module_settings)
    assert (checked.code, f"whole; {ROWS} rows" in checked.out) == (0, True), checked

    above = call("retention", *here, "--until", head + 1, settings=module_settings)
    assert above.code == 2, above
    plan = call("retention", *here, "--until", 0, "--dry-run", settings=module_settings)
    assert (plan.code, "to be detached: none" in plan.out) == (0, True), plan
    (file,) = folder.glob("chain-*/rows-*.parquet")
    file.write_bytes(file.read_bytes()[:-1])
    broken = call("archive", *here, "--check", settings=module_settings)
    assert (broken.code, "is not the file that was written" in broken.out) == (1, True), broken
