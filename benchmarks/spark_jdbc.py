"""Does the check of a database keep the reading side busy?

All over the same rows of one chain, by turns:
- bare: `count` and `sum` of id and pid, read by JDBC in as many partitions as the check has, as
  rows that PostgreSQL makes of the pages;
- arrays: the same, with the arrays of the pages read by JDBC, and made rows by Spark;
- check: `verify --source database` whole, from opening it to the report (Spark is up already);
- local: the same with `--local`, on one core;
- lag: PostgreSQL's own `lag()` over the view, which needs no reader at all, but sorts the rows;
- aggregate: PostgreSQL's own `count` and `sum`, beside it.

PostgreSQL answers on the same cores as Spark reads.

    python -m benchmarks.spark_jdbc [--rows 10000000] [--repeats 5]
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import functions as F  # noqa: N812

from benchmarks.arms import ratio, spread
from benchmarks.chains import Site, benchmark_stack, connect_to, open_site, site_of
from benchmarks.ends import RunFailed
from benchmarks.generated import SQL, generate_chain
from benchmarks.host import RESULTS, describe_host
from benchmarks.spark_check import by_turns
from benchmarks.spark_data import spark_with
from chain_verifier.config import FETCH_PAGES, FETCH_ROWS, DatabaseSource, VerifyRequest
from chain_verifier.local.verify import verify_locally
from chain_verifier.report import Report, Verdict
from chain_verifier.spark.sources.database import DatabaseTable, chain_address
from chain_verifier.spark.verify import verify

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Bench:
    """One chain in PostgreSQL, and the ways to read it."""

    def __init__(self, spark: SparkSession, site: Site, chain_id: int, rows: int) -> None:
        self._spark = spark
        self._site = site
        self._chain_id = chain_id
        self._rows = rows
        self._request = VerifyRequest(
            chain_id=chain_id, sources=(DatabaseSource(database=site.auditor),)
        )

    def bare(self) -> None:
        """Count and sum in Spark the rows that JDBC brings."""
        self._count(
            self._read("id, pid", "CROSS JOIN unnest(page.ids, page.pids) AS row (id, pid)")
        )

    def arrays(self) -> None:
        """Count and sum in Spark what is in the arrays that JDBC brings."""
        found = F.explode(F.arrays_zip("ids", "pids")).alias("row")
        self._count(self._read("ids, pids").select(found).selectExpr("row.ids id", "row.pids pid"))

    def _read(self, columns: str, joined: str = "") -> DataFrame:
        """Read pages in as many partitions as the check has."""
        source = DatabaseSource(database=self._site.auditor)
        partitions = DatabaseTable(self._spark, source, self._chain_id).rows.rdd.getNumPartitions()
        address = chain_address(self._site.auditor)
        # By the end of its page, which is in the index: a part could not be read from the view.
        table = f"""(
            SELECT page.last_id, {columns} FROM chain_page AS page {joined}
            WHERE page.chain_id = {self._chain_id}
        ) AS bare"""  # noqa: S608 - a number and names of ours
        return self._spark.read.jdbc(
            address.url,
            table,
            column="last_id",
            lowerBound=1,
            upperBound=self._rows + 1,
            numPartitions=partitions,
            properties={
                **address.properties,
                "fetchsize": str(FETCH_ROWS if joined else FETCH_PAGES),
            },
        )

    def _count(self, rows: DataFrame) -> None:
        found = rows.agg(F.count("pid"), F.sum("id"), F.sum("pid")).collect()[0]
        self._require(found[0], self._rows)

    def check(self) -> None:
        """Verify the database with Spark."""
        self._require_whole(verify(self._request, session=self._spark))

    def local(self) -> None:
        """Verify the database without Spark."""
        self._require_whole(verify_locally(self._request))

    def lag(self) -> None:
        """Have PostgreSQL compare each row with the one before."""
        self._require(asyncio.run(self._ask("lag")), 0)

    def aggregate(self) -> None:
        """Have PostgreSQL count and sum."""
        self._require(asyncio.run(self._ask("aggregate")), self._rows)

    async def _ask(self, name: str) -> Any:  # noqa: ANN401 - whatever it answers
        connection = await connect_to(self._site.auditor)
        try:
            return await connection.fetchval(SQL[name], self._chain_id, timeout=600)
        finally:
            await connection.close()

    def _require_whole(self, report: Report) -> None:
        self._require((report.verdict, report.sources[0].rows), (Verdict.COMPLETE, self._rows))

    def _require(self, found: object, expected: object) -> None:
        if found != expected:
            raise RunFailed(f"{found!r}, expected {expected!r}")


def _measured(site: Site, chain_id: int, arguments: argparse.Namespace) -> dict[str, list[float]]:
    with spark_with({}) as spark:
        bench = Bench(spark, site, chain_id, arguments.rows)
        arms = {name: getattr(bench, name) for name in arguments.arms.split(",")}
        return by_turns(arms, arguments.repeats, ("bare", "check"))


def main() -> None:
    """Measure, print, and add a line to the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--stack", type=Path, help="the benchmarks' stack lies beside it")
    parser.add_argument("--arms", default="bare,arrays,check,local,lag,aggregate")
    parser.add_argument(
        "--prepare", action="store_true", help="make the chain, tell its number, leave the stack up"
    )
    parser.add_argument(
        "--chain", type=int, help="measure one that --prepare made; the stack stays"
    )
    parser.add_argument("--dry", action="store_true", help="print only")
    arguments = parser.parse_args()
    stack = benchmark_stack(arguments.stack)
    site = site_of(stack) if arguments.chain else open_site(stack)
    try:
        chain_id = arguments.chain or asyncio.run(generate_chain(site, arguments.rows))
        if arguments.prepare:
            print(chain_id)
            return
        figures = _measured(site, chain_id, arguments)
    finally:
        if not (arguments.prepare or arguments.chain):
            stack.down()
    result = {
        "benchmark": "spark_jdbc",
        "host": describe_host(),
        "repeats": arguments.repeats,
        "rows": arguments.rows,
        "payload_bytes": 100,
        "arms": {
            name: {
                "seconds": spread(values),
                "rows_per_second": spread([arguments.rows / seconds for seconds in values]),
                "rate_to_bare": ratio(figures, "bare", name),
            }
            for name, values in figures.items()
        },
    }
    print(msgspec.json.format(msgspec.json.encode(result), indent=1).decode())
    if arguments.dry:
        return
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / "spark_jdbc.jsonl").open("ab") as file:
        file.write(msgspec.json.encode(result) + b"\n")


if __name__ == "__main__":
    main()
