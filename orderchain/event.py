"""One row of a chain."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from orderchain.limits import KEY_BYTES_MAX, PAYLOAD_BYTES_MAX


class Event(Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """An order as it stands in its chain: on the wire `[id, pid, key, event_time_ns, payload]`.

    Bounds are checked when an event is decoded, not when it is constructed: those of key, time and
    payload by the decoder; those of id and pid by `orderchain.frame`, from the links, since a
    decoder's look at both of every row costs a receiver a twentieth of its time.
    """

    id: int
    """Position in the chain, 1 to `ID_MAX`. Rises, may skip numbers: nothing computes `id + 1`."""
    pid: int
    """Id of the previous row of the chain; 0 for the first. Always below `id`."""
    key: Annotated[str, Meta(min_length=1, max_length=KEY_BYTES_MAX)]
    """The client's unique id for this order."""
    event_time_ns: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
    """When it happened, in nanoseconds since 1970 UTC, by the client's clock. Orders nothing."""
    payload: Annotated[bytes, Meta(max_length=PAYLOAD_BYTES_MAX)]
    """The order itself; the engine never looks inside."""
