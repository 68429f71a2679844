"""Lines of JSON: Spark's parser stops after the first value of a line, and says nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own documents use

if TYPE_CHECKING:
    from pyspark.sql import Column


def is_one_value(line: Column) -> Column:
    """Return whether a line is one JSON value to its end, as Spark's reader takes JSON."""
    # What follows a value that ends the list itself counts for neither.
    counts = [
        F.size(F.from_json(F.concat(F.lit("["), line, F.lit(f"{more}]")), "array<string>"))
        for more in ("", ",0")
    ]
    return F.coalesce((counts[0] == 1) & (counts[1] == 2), F.lit(False))
