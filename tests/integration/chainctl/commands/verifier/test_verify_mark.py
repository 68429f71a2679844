"""`chainctl chain verify-mark`: marks are listed, and revoked with a reason."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.builders.orders import order_file
from tests.integration.chainctl.conftest import Call, Ctl
from tests.stored_pages import as_owner

Settings = dict[str, str]
WHY = ("--reason", "backup restored, ticket 516", "--actor", "eve")
FILES = 3
ROWS = 10


@pytest.fixture
def marked(
    ctl: Ctl, call: Call, module_settings: Settings, chain: int, tmp_path: Path
) -> list[int]:
    """A chain that was verified three times, each time a bit further; the rows of its marks."""
    for number in range(FILES):
        path = order_file(tmp_path / f"o{number}.csv", ROWS)
        for arguments in (
            ("sequence", "--input", path),
            ("verify", "--local", "--source", "database", "--since-verified", "--actor", "ann"),
        ):
            ctl.done(*arguments, "--chain", chain)
    return [mark["until_id"] for mark in reversed(listed(call, module_settings, chain))]


def listed(call: Call, settings: Settings, chain: int) -> list[Any]:
    done = call("chain", "verify-mark", "list", "--chain", chain, "--json", settings=settings)
    assert done.code == 0, done
    found: list[Any] = json.loads(done.out)
    return found


def test_revoked_mark_takes_later_ones_with_it_and_verification_begins_before_it(
    call: Call, module_settings: Settings, chain: int, marked: list[int]
) -> None:
    settings, here = module_settings, ("--chain", chain)
    assert len(marked) == FILES
    assert {(mark["holds"], mark["verified_by"]) for mark in listed(call, settings, chain)} == {
        ("yes", "ann")
    }
    revoke = ("chain", "verify-mark", "revoke", *here, "--mark", marked[1], *WHY, "--json")
    tried = call(*revoke, "--dry-run", settings=settings)
    assert tried.code == 0, tried
    assert json.loads(tried.out)["act_id"] is None
    assert len(listed(call, settings, chain)) == FILES, "a dry run revokes nothing"

    done = json.loads(call(*revoke, settings=settings).out)
    assert (done["marks"], done["begins_after"]) == (marked[1:], marked[0])
    assert [mark["until_id"] for mark in listed(call, settings, chain)] == marked[:1]
    (act,) = json.loads(call("acts", *here, "--json", settings=settings).out)
    assert (act["act_id"], act["act"], act["actor"]) == (done["act_id"], "revoke mark", "eve")
    assert act["reason"] == WHY[1]
    assert f"after {marked[0]} up to {marked[1]}, seal " in act["detail"]
    assert "by ann" in act["detail"]

    verify = ("verify", "--local", *here, "--source", "database", "--since-verified", "--json")
    again = json.loads(call(*verify, settings=settings).out)
    assert (again["start"], again["head"]) == (marked[0], marked[-1])
    assert [mark["until_id"] for mark in listed(call, settings, chain)] == [marked[-1], marked[0]]
    # Without a row it is the last mark.
    last = call("chain", "verify-mark", "revoke", *here, *WHY, "--json", settings=settings)
    assert json.loads(last.out)["marks"] == [marked[-1]]


def test_contradicted_mark_is_listed_and_once_revoked_the_chain_is_whole(
    call: Call, module_settings: Settings, chain: int, marked: list[int]
) -> None:
    settings, here = module_settings, ("--chain", chain)
    where = f"chain_id = {chain} AND until_id = {marked[-1]}"
    as_owner(settings, f"UPDATE chain_verified SET seal = sha256(seal) WHERE {where}")  # noqa: S608
    verify = ("verify", "--local", *here, "--source", "database")
    found = call(*verify, settings=settings)
    assert (found.code, "A contradicted mark" in found.out) == (1, True), found
    assert listed(call, settings, chain)[0]["holds"] == "another seal"
    revoke = ("chain", "verify-mark", "revoke", *here, "--mark", marked[-1], *WHY)
    assert call(*revoke, settings=settings).code == 0
    assert call(*verify, settings=settings).code == 0


def test_mark_that_is_none_is_refused(ctl: Ctl, chain: int, marked: list[int]) -> None:
    here = ("chain", "verify-mark", "revoke", "--chain", chain)
    assert "'--reason'" in ctl.refused(*here)
    none = ctl.refused(*here, "--mark", marked[0] + 1, *WHY)
    assert "the row of a mark" in none
    other = ctl.refused(*here[:-1], 9, *WHY)
    assert "chainctl chain create 9" in other
