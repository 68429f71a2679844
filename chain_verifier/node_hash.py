"""The keyed hash of a node, as Spark's `xxhash64(key, node)` gives it, for the few that the driver
adds to what the executors have summed. Pure.
"""

from __future__ import annotations

from typing import Final

_BITS: Final = 64
_MASK: Final = 2**_BITS - 1
_PRIMES: Final = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)
"""The five of XXH64."""

_SPARK_SEED: Final = 42
_LONG_BYTES: Final = 8


def node_hash(key: int, node: int) -> int:
    """Return the hash of `node` under `key`, both 64 bits wide, as a number from 0 to 2^64 - 1."""
    return _hash_long(node, _hash_long(key, _SPARK_SEED))


def _hash_long(value: int, seed: int) -> int:
    """XXH64 of the eight bytes of `value`."""
    p1, p2, p3, p4, p5 = _PRIMES
    mixed = (_rotated((value * p2) & _MASK, 31) * p1) & _MASK
    found = ((seed + p5 + _LONG_BYTES) & _MASK) ^ mixed
    found = (_rotated(found, 27) * p1 + p4) & _MASK
    found = ((found ^ (found >> 33)) * p2) & _MASK
    found = ((found ^ (found >> 29)) * p3) & _MASK
    return found ^ (found >> 32)


def _rotated(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (_BITS - bits))) & _MASK
