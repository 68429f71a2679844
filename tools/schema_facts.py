"""Writes what each part of the schema is: `python tools/schema_facts.py`. Starts a PostgreSQL.

Each part is applied to a database of its own, and what the catalogs say of it then is written to
`chainctl/schema/shipped`. Run it after a change of a part's SQL; a test compares the two.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from chain_kernel.sql import OWNER
from chainctl.database import connected_to
from chainctl.schema.parts import PARTS, encode_facts, read_facts
from local_stack import PostgresServer, PostgresServerConfig
from local_stack.postgres import SUPERUSER
from local_stack.process import free_port

if TYPE_CHECKING:
    from chainctl.schema.parts import Fact, SchemaPart

SHIPPED: Final = Path(__file__).parents[1] / "chainctl" / "schema" / "shipped"


async def facts_of(dsn: str, part: SchemaPart) -> list[Fact]:
    """Apply `part` to an empty database, and return what it is."""
    async with connected_to(dsn, 10.0, OWNER) as connection:
        async with connection.transaction():
            await connection.execute(part.text())
        return await read_facts(connection, part)


def main() -> None:
    """Write one file per part."""
    folder = Path(tempfile.mkdtemp(prefix="orderchain-facts-"))
    folder.chmod(0o755)  # the server runs as an account of its own
    config = PostgresServerConfig(
        directory=folder / "postgres",
        port=free_port(),
        passwords={SUPERUSER: secrets.token_hex(16)},
        shared_buffers_mb=16,
        max_wal_size_mb=64,
    )
    try:
        with PostgresServer(config) as server:
            for part in PARTS.values():
                server.create_database(part.name)
                facts = asyncio.run(facts_of(server.dsn(database=part.name), part))
                (SHIPPED / f"{part.name}.json").write_text(encode_facts(facts), encoding="utf-8")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
