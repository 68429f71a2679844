"""`chainctl seal export`, and the seal that it prints held against the chain later."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.builders.orders import order_file
from tests.integration.chainctl.conftest import Call, Ctl, Refused
from tests.stored_pages import as_owner

ROWS = 500


@pytest.fixture
def filled(ctl: Ctl, chain: int, tmp_path: Path) -> int:
    """A chain with rows 1 to ROWS, published to its topic."""
    ctl.done("sequence", "--chain", chain, "--input", order_file(tmp_path / "o.csv", ROWS))
    return chain


def change(settings: dict[str, str], chain: int) -> None:
    where = f"chain_id = {chain} AND id = {ROWS // 2}"
    as_owner(settings, f"UPDATE chain_event SET payload = '\\x00' WHERE {where}")  # noqa: S608


def test_seal_export_prints_the_head_with_its_seal_and_time(ctl: Ctl, filled: int) -> None:
    out = ctl.done("seal", "export", "--chain", filled)
    kept, _, time = out.strip().partition(" ")
    row_id, _, seal = kept.partition(":")
    assert (row_id, len(bytes.fromhex(seal)), time[-1]) == (str(ROWS), 32, "Z")
    as_json = ctl("seal", "export", "--chain", filled, "--json")
    line: dict[str, Any] = json.loads(as_json.out)
    assert (line["chain_id"], line["id"], line["seal"]) == (filled, ROWS, seal)
    assert line["committed_at"] == time


def test_seal_export_of_a_chain_that_is_not_there_is_refused(ctl: Ctl, chain: int) -> None:
    done = ctl("seal", "export", "--chain", chain + 1000)
    assert done.code == 2, done


def test_signed_seals_of_a_folder_show_what_was_changed_later(
    ctl: Ctl, call: Call, refused: Refused, module_settings: dict[str, str], filled: int,
    tmp_path: Path,
) -> None:  # fmt: skip
    key, vault = tmp_path / "seal.key", tmp_path / "vault"
    public = call("seal", "key", key).out.strip()
    export = ("seal", "export", "--chain", filled, "--store", vault, "--sign", key)
    ctl.done(*export)
    ctl.done("sequence", "--chain", filled, "--input", order_file(tmp_path / "more.csv", 1))
    done = ctl(*export, "--json")
    assert json.loads(done.out)["public_key"] == public
    first, _ = sorted(vault.iterdir())
    sheet = call("seal", "show", first, "--public-key", public)
    assert sheet.code == 0, sheet
    assert "place, date" in sheet.out
    both = call("seal", "show", vault, "--public-key", public)
    assert (both.code, both.out.count("place, date")) == (0, 2), both
    assert both.err == ""
    assert "whose keys these are was not checked" in call("seal", "show", vault).err
    assert "a folder with exported seals" in refused("seal", "show", vault.parent)

    verify = (
        "verify", "--local", "--chain", filled, "--source", "database",
        "--expect-seals", vault, "--seal-public-key", public,
    )  # fmt: skip
    clean = ctl(*verify)
    assert clean.code == 0, clean
    assert "2 exported seals held against the database, 0 of archived rows" in clean.err
    assert re.search(r"exported \d+ s ago\n", clean.err)
    last = json.loads(sorted(vault.iterdir())[-1].read_text())
    assert f"2 exported seals fit; the last one is of row {last['id']} (committed " in clean.out
    anybody = ctl(*verify[:-2])
    assert "s ago; --seal-public-key would check who signed them\n" in anybody.err
    change(module_settings, filled)
    assert ctl(*verify).code == 1
    first.write_text(first.read_text().replace(f'"id": {ROWS}', f'"id": {ROWS - 1}'))
    assert "signature of" in ctl.refused(*verify)
    assert "needs --store" in refused("seal", "export", "--chain", filled, "--every", "1h")
    assert "--http needs --every" in refused("seal", "export", "--store", vault, "--http", 0)


@pytest.mark.usefixtures("spark")
@pytest.mark.timeout(400)
def test_verify_with_an_exported_seal_finds_a_payload_that_was_changed_later(
    ctl: Ctl, module_settings: dict[str, str], filled: int
) -> None:
    done = ctl("seal", "export", "--chain", filled)
    kept = done.out.split()[0]
    arguments = ["verify", "--chain", filled, "--source", "database", "--source", "topic"]
    arguments += ["--expect-seal", kept]

    report: dict[str, Any] = ctl.json(*arguments)
    assert (report["verdict"], report["comparisons"][0]["is_equal"]) == ("complete", True)
    assert [source["rows"] for source in report["sources"]] == [ROWS, ROWS]

    change(module_settings, filled)
    broken = ctl(*arguments)
    assert broken.code == 1, broken
    assert "seal mismatch" in broken.out
    assert f"row {ROWS // 2} differs from database in payload" in broken.out
