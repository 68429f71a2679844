import re

import pytest

from chain_kernel.sql import LOGIN_ROLES, schema_sql
from chainctl.main import main
from chainctl.schema.parts import expected_objects, grants_sql


def test_grants_hold_every_privilege_and_role_of_the_schema_and_no_table() -> None:
    schema, grants = schema_sql(), grants_sql(schema_sql())
    privileges = re.findall(r"^(?:GRANT|REVOKE|ALTER ROLE)[^;]*;", schema, re.MULTILINE)
    assert len(privileges) > 10
    assert [privilege for privilege in privileges if privilege not in grants] == []
    assert "CREATE TABLE" not in grants
    assert all(role in grants for role in LOGIN_ROLES)


def test_grants_take_the_owner_role_and_let_go_of_it() -> None:
    grants = grants_sql(schema_sql())
    assert grants.index("SET LOCAL ROLE") < grants.rindex("RESET ROLE")


def test_expected_objects_name_every_table_and_function_of_the_schema() -> None:
    schema, objects = schema_sql(), expected_objects(schema_sql())
    assert schema.count("CREATE TABLE ") - schema.count("'CREATE TABLE ") == sum(
        kind == "table" for kind, _ in objects
    )
    assert ("function", "chain_create") in objects
    assert ("view", "chain_event") in objects
    assert ("role", "orderchain_owner") in objects


def test_schema_print_and_grants_print_need_no_settings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["schema", "print"]) == 0
    assert capsys.readouterr().out == schema_sql()
    assert main(["grants", "print"]) == 0
    assert "GRANT" in capsys.readouterr().out
