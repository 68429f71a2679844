"""A receiver's journal: JSON Lines, in the order in which the rows were handed on.

The file is read as lines, so that each keeps its place and none is misread.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812

from chain_verifier.request_check import literal_path, require_readable
from chain_verifier.spark.sources.table import (
    BLOCK,
    CONTENT,
    EVENT_TYPES,
    HAS_NULL,
    MALFORMED,
    POSITION,
    any_null,
)
from orderchain.errors import InputError
from orderchain.files import END_BYTES, last_id, no_row

if TYPE_CHECKING:
    from typing import BinaryIO

    from pyspark.sql import Column, DataFrame, SparkSession

    from chain_verifier.config import JournalSource


_CORRUPT: Final = "_corrupt_record"
_LINE: Final = "line"
_TEXT: Final = "payload_text"

_JSON_TYPES: Final = EVENT_TYPES | {"payload": "string", _CORRUPT: "string"}
_JSON_SCHEMA: Final = ", ".join(f"{name} {kind}" for name, kind in _JSON_TYPES.items())
_JSON_OPTIONS: Final = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": _CORRUPT,
    "allowSingleQuotes": "false",
}


class JournalTable:
    """The rows of one journal, as it was when it was opened: what is appended later is left out."""

    has_positions: Final = True

    def __init__(self, spark: SparkSession, source: JournalSource) -> None:
        self.name = source.name
        self._path = Path(source.path).absolute()
        require_readable(source)
        with self._path.open("rb") as file:
            self._look_at_end(file)
        # Made once: Spark lists the file now, and reads no line that begins after this end.
        self._lines = _numbered_lines(spark, self._path)
        if self._bytes and not self._lines.inputFiles():
            raise InputError("journal", source.path, "a file name that begins with neither _ nor .")

    def _look_at_end(self, file: BinaryIO) -> None:
        self._bytes = file.seek(0, os.SEEK_END)
        file.seek(max(0, self._bytes - END_BYTES))
        *lines, torn = file.read().split(b"\n")
        self._is_torn = bool(torn)
        self.span = last_id(lines)

    def may_end_torn(self) -> bool:
        """Whether the last line may be cut off: by a crash, or because a receiver is writing it."""
        return self._is_torn or self._path.stat().st_size != self._bytes

    @property
    def rows(self) -> DataFrame:
        """The rows, each with its place in the file."""
        fields = F.from_json(F.col(_LINE), _JSON_SCHEMA, _JSON_OPTIONS)
        named = self._lines.withColumn("fields", fields).select(_LINE, BLOCK, POSITION, "fields.*")
        decoded = named.withColumnRenamed("payload", _TEXT).withColumn(
            "payload", F.try_to_binary(_TEXT, F.lit("base64"))
        )
        is_no_base64 = F.col(_TEXT).isNotNull() & F.col("payload").isNull()
        is_malformed = F.col(_CORRUPT).isNotNull() | ~_is_one_object() | is_no_base64
        return (
            decoded.withColumn(MALFORMED, is_malformed)
            .withColumn(HAS_NULL, any_null())
            .select(*CONTENT, HAS_NULL, MALFORMED, BLOCK, POSITION, _LINE)
        )

    def malformed_error(self) -> InputError:
        """Return the error that names the first line that is no row of a journal."""
        found = self.rows.where(MALFORMED).orderBy(BLOCK, POSITION).select(_LINE).head()
        line = "" if found is None else str(found[0])
        return no_row(self.name, line, self._number_of(line))

    def _number_of(self, line: str) -> int | None:
        with self._path.open("rb") as file:
            for number, found in enumerate(file, 1):
                if found.rstrip(b"\n").decode(errors="replace") == line:
                    return number
        return None


def _numbered_lines(spark: SparkSession, path: Path) -> DataFrame:
    return (
        spark.read.option("lineSep", "\n")
        .text(literal_path(f"file://{path}"))
        .select(
            F.col("value").alias(_LINE),
            F.col("_metadata.file_block_start").alias(BLOCK),
            F.monotonically_increasing_id().alias(POSITION),
        )
    )


def _is_one_object() -> Column:
    """Return whether a line is one JSON object to its end: the parser stops after the first one.

    Otherwise, two lines that ran into each other would pass for one. The line is parsed once more
    only where that may have happened.
    """
    line = F.col(_LINE)
    objects = F.json_array_length(F.concat(F.lit("["), line, F.lit("]")))
    is_single = F.when(line.contains("}{"), F.coalesce(objects == 1, F.lit(False)))
    return line.endswith("}") & is_single.otherwise(F.lit(True))
