"""A writer must not become the owner by way of the owner's functions."""

from chain_kernel.sql import OWNER, SEQUENCER_WRITER
from local_stack.postgres import SUPERUSER

from .conftest import Connect

_SHADOW = """
CREATE TEMP TABLE seen (role name);
GRANT ALL ON seen TO PUBLIC;
CREATE FUNCTION pg_temp.trap(pg_catalog.text) RETURNS boolean LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO pg_temp.seen VALUES (current_user); RETURN true; END $$;
CREATE DOMAIN pg_temp.text AS pg_catalog.text CHECK (pg_temp.trap(VALUE));
CREATE DOMAIN pg_temp.int8 AS pg_catalog.int8 CHECK (pg_temp.trap(VALUE::pg_catalog.text));
GRANT EXECUTE ON FUNCTION pg_temp.trap(pg_catalog.text) TO PUBLIC;
"""

_CARELESS = f"""
CREATE FUNCTION public.careless() RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS
    $$ BEGIN PERFORM 1::int8; END $$;
ALTER FUNCTION public.careless() OWNER TO {OWNER};
"""
"""A function of the owner without a search path of its own."""


async def test_types_shadowed_by_the_caller_run_no_code(connect: Connect) -> None:
    writer, superuser = await connect(SEQUENCER_WRITER), await connect(SUPERUSER)
    # As a DBA may for another application; by itself the schema takes it from everybody.
    database = await superuser.fetchval("SELECT current_database()")
    await superuser.execute(f"GRANT TEMPORARY ON DATABASE {database} TO {SEQUENCER_WRITER}")
    await writer.execute(_SHADOW)
    await writer.execute("SELECT public.chain_page_extend(1, 500)")
    assert await writer.fetch("SELECT role FROM pg_temp.seen") == []
    await superuser.execute(_CARELESS)
    await writer.execute("SELECT public.careless()")
    assert await writer.fetchval("SELECT role FROM pg_temp.seen") == OWNER
