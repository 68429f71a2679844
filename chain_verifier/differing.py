"""Which buckets of two sources must be compared row by row: those whose fingerprints differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chain_verifier.bucket import Bucket
    from chain_verifier.horizon import Horizon


def differing_buckets(
    one: Sequence[Bucket], other: Sequence[Bucket], horizon: Horizon
) -> list[Bucket]:
    """Return the buckets, from either side, whose rows are not the same multiset.

    Only those that can hold a row between the ends of `horizon`, which may be narrower than what
    was scanned of either.
    """
    left = {bucket.number: bucket for bucket in one}
    right = {bucket.number: bucket for bucket in other}
    differing = []
    for number in sorted(left.keys() | right.keys()):
        here, there = left.get(number), right.get(number)
        bucket = here or there
        if bucket is None or not _is_within(bucket, horizon):
            continue
        if here is None or there is None or _print_of(here) != _print_of(there):
            differing.append(bucket)
    return differing


def _is_within(bucket: Bucket, horizon: Horizon) -> bool:
    """Say whether a bucket can hold a row between start and head."""
    ends_behind_start = bucket.upper_id - 1 > horizon.start
    return ends_behind_start and (horizon.head is None or bucket.lower_id <= horizon.head)


def _print_of(bucket: Bucket) -> tuple[int, tuple[int, int]]:
    return bucket.rows, bucket.fingerprint
