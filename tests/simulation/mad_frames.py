"""A leader whose frames are right in their rows, and at times wrong about a seal."""

from __future__ import annotations

from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import msgspec

from chain_kernel.frame import encode_frame
from sequencer import publisher as framing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chain_kernel.frame import FrameHeader

    from .plan import Plan


@contextmanager
def mad_frames(plan: Plan) -> Iterator[None]:
    """Have some frames name a seal that the database does not have."""
    encode = encode_frame
    random = Random(f"seals of {plan.seed}")

    def encode_madly(header: FrameHeader, *args: Any, **settings: Any) -> bytes:
        if header.is_batch_end and header.count and random.random() < plan.wrong_seals:
            header = msgspec.structs.replace(header, seal_after=random.randbytes(32))
        return encode(header, *args, **settings)

    with patch.object(framing, "encode_frame", encode_madly):
        yield
