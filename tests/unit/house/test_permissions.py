"""The page on permissions has the rights that are shipped, and nothing is open to everybody.

`integration/schema/test_facts` compares what is shipped with the catalogs of a server.
"""

import re
from pathlib import Path

import pytest

from chain_kernel.sql import OWNER
from chainctl.schema.parts import PARTS, SchemaPart, shipped_facts

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "permissions.md").read_text(encoding="utf-8")
AS_THE_CALLER = {
    "chain_events", "chain_refuse", "outbox_headers_fit", "outbox_id_at", "outbox_new_id",
    "outbox_silent", "inbox_id_at",
}  # fmt: skip
"""Functions that work with the rights of their caller."""


def test_page_names_every_role() -> None:
    named = re.findall(r"^\| `(\w+)` \| (?:all|the \w+)", PAGE, re.MULTILINE)
    assert set(named) == {OWNER}.union(*(part.roles for part in PARTS.values()))


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_objects_belong_to_the_owner_and_nothing_is_granted_to_public(part: SchemaPart) -> None:
    facts = shipped_facts(part)
    assert {fact.value for fact in facts if fact.aspect == "owner"} == {OWNER}
    assert {fact.value for fact in facts if fact.aspect == "rights"} == {"none"}
    assert not [fact for fact in facts if "role PUBLIC" in fact.aspect]
    rights = [fact for fact in facts if " may " in fact.aspect]
    assert {fact.value for fact in rights} == {"may"}, "a right that may be granted on"


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_functions_look_into_temporary_schemas_last(part: SchemaPart) -> None:
    for fact in shipped_facts(part):
        if fact.aspect == "signature":
            name = re.split(r"[ (]", fact.object)[1]
            assert ("SECURITY DEFINER" in fact.value) is (name not in AS_THE_CALLER), name
            # A function with a setting is not inlined, and `chain_events` must be.
            is_set = "SET search_path=pg_catalog, public, pg_temp" in fact.value
            assert is_set is (name != "chain_events"), name
