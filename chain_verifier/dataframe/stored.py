"""The states that services have stored, compared with a replay."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, suppress
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct
from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own documents use

from chain_kernel.errors import InputError, RetryError, SettingError
from chain_verifier.dataframe.replay import replay
from chain_verifier.dataframe.source import NAME, register
from chain_verifier.dataframe.two_folds import Divergence, TwoVersions, two_versions
from chain_verifier.places import require_no_password
from chain_verifier.sources.database import DatabaseRows, require_whole
from chain_verifier.sources.options import ChainOptions
from chain_verifier.sources.table import open_files, open_table
from chain_verifier.spark.errors import SPARK_ERRORS, as_broken, refusing, spark_reason
from chain_verifier.spark.own_session import ARROW_RECORDS
from chain_verifier.spark.statements import WorkerLogin, find

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from chain_verifier.config import DatabaseSource
    from chain_verifier.dataframe.fold import Fold

STATE_COLUMNS: Final = ("group", "id", "digest")
_FORMATS: Final = ("parquet", "json", "table", "receiver")
_ARROW_RECORDS: Final = 10_000
"""Orders that cross to Python at once: fewer cost more than the fold."""


class Compared(Struct, frozen=True):
    """Differences of a replay from the states that services have stored, and from a candidate."""

    states: int
    """Number of states compared; 0: nothing is known of any."""
    differences: tuple[dict[str, Any], ...]
    """The first wrong one of each group."""
    versions: TwoVersions | None = None
    """The comparison with the candidate, if there is one."""


def read_states(
    spark: SparkSession, source: str, database: DatabaseSource, chain_id: int
) -> DataFrame:
    """Return the stored states of a source: `group, id, digest`.

    `receiver:NAME` is what a receiver of the chain has stored with its checkpoint. `parquet:PATH`
    and `json:PATH` are files, `table:NAME` is a table of the session's catalog; rows of other
    chains are left out where it has a `chain_id`. Raises SettingError for another form, InputError
    for what cannot be read.
    """
    require_no_password("--states", source)
    kind, _, name = source.partition(":")
    if kind not in _FORMATS or not name:
        expected = ", ".join(f"{each}:NAME" for each in _FORMATS)
        raise SettingError("--states", source, f"one of {expected}")
    with _as_unreadable(source):
        if kind == "receiver":
            return _open_stored(spark, name, database, chain_id)
        found = (
            open_table(spark, name)
            if kind == "table"
            else open_files(spark, kind, name, text="group")
        )
        missing = [column for column in STATE_COLUMNS if column not in found.columns]
        if "chain_id" in found.columns:
            if not found.where(F.col("chain_id").isNull()).isEmpty():
                raise InputError("column chain_id of the states", "NULL", "a value in each row")
            found = found.where(F.col("chain_id") == chain_id)
    if missing:
        raise InputError(
            "--states", source, f"the columns {', '.join(STATE_COLUMNS)}: it has no {missing[0]}"
        )
    return found.select(*STATE_COLUMNS)


@contextmanager
def _as_unreadable(source: str) -> Iterator[None]:
    """Raise InputError for every error that Spark raises while it reads stored states."""
    try:
        yield
    except (*SPARK_ERRORS, OSError) as error:
        expected = f"a source that can be read ({spark_reason(error)})"
        raise InputError("--states", source, expected) from error


def _let_go(stored: DataFrame) -> None:
    """Drop what was persisted; never raises: where Java has died, the first error says so."""
    with suppress(*SPARK_ERRORS, OSError):
        stored.unpersist()


def _open_stored(
    spark: SparkSession, receiver: str, database: DatabaseSource, chain_id: int
) -> DataFrame:
    """Open the states that a receiver has stored with its checkpoint."""
    # As bytes, whatever a name holds, and however the server reads a literal.
    name = f"convert_from(decode('{receiver.encode().hex()}', 'hex'), 'UTF8')"
    statement = (
        'SELECT "group", id, digest FROM public.receiver_state '  # noqa: S608 - digits
        f"WHERE chain_id = {chain_id} AND receiver = {name}"
    )
    schema = "group string, id bigint, digest binary"
    return find(spark, WorkerLogin.of(database), [statement], schema)


def differences(
    spark: SparkSession,
    fold: Fold[Any],
    source: DatabaseSource,
    chain_id: int,
    states: str | None,
    *,
    candidate: Fold[Any] | None = None,
    compared_rows: int | None = None,
) -> Compared:
    """Replay a chain from its database, and compare it with stored states, a candidate, or both.

    `spark` is one that `open_session` has yielded, whose settings are ours.

    Raises as `read_states`, InputError for a state without id or digest and for a fold that raises,
    SettingError for a chain with archived rows, RetryError for a database that is not at
    the last state yet, and what `replay` and the data source raise.
    """
    register(spark)
    spark.conf.set(ARROW_RECORDS, _ARROW_RECORDS)
    options = {"url": str(source.database), "chains": str(chain_id), "linked": "true"}
    heads = DatabaseRows(ChainOptions.of(options))
    require_whole(heads, chain_id)
    with ExitStack() as closing:
        stored = None
        if states is not None:
            # The service may overwrite them: those that are seen first are compared.
            stored = read_states(spark, states, source, chain_id).persist()
            closing.callback(_let_go, stored)
            with _as_unreadable(states):
                stored.count()  # all of them are read here, where an error is theirs
        closing.enter_context(as_broken(source.name))
        rows = spark.read.format(NAME).options(**options).load()
        replayed = replay(
            rows, fold, states=stored, candidate=candidate, compared_rows=compared_rows
        )
        head = require_whole(heads, chain_id).until_id
        if replayed.compared_id > head:
            raise RetryError(
                f"chain {chain_id}: a state is stored after id {replayed.compared_id}, and the "
                f"database is at {head}: it lags, or the state is of another database"
            )
        seen = Observation()
        # A group may have stored states alone.
        groups = F.count_if(F.expr("kind = 'state' AND rows > 0")).alias("groups")
        observed = replayed.results.observe(seen, groups)
        # Where rows were archived before the plan, the fold has begun after them: what it gives is
        # of no use, nor is what it raises.
        try:
            with refusing():
                # To sort them, Spark would replay twice, and count twice (SPARK-37487).
                found = observed.where("kind IN ('differs', 'diverges')").collect()
        except InputError:
            require_whole(heads, chain_id)
            raise
    require_whole(heads, chain_id)
    shown = tuple(
        {name: row[name] for name in ("group", "id", "equal_id", "rows")}
        | {name: bytes(row[name]).hex() for name in ("digest", "stored")}
        for row in sorted(found, key=itemgetter("id", "group"))
        if row["kind"] == "differs"
    )
    if candidate is None:
        return Compared(replayed.compared, shown)
    diverged = [row["divergence"].asDict(recursive=True) for row in found if row["divergence"]]
    versions = two_versions(seen.get["groups"], msgspec.convert(diverged, list[Divergence]))
    return Compared(replayed.compared, shown, versions)
