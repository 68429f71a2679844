"""Follows one order and prints its way: `python tools/walk.py`. It starts the local stack.

A real sequencer and a real receiver run in this process. The way to Kafka is what the sequencer
runs between `submit` and the broker's acknowledgement; the way to the checkpoint is what the
receiver runs until the order's checkpoint is stored. Each file of ours is listed once, in the order
in which the way first comes to it, with the functions that it runs there.

`--write` puts the list into `docs/a-walk-through.md`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from msgspec.structs import replace

from local_stack import LocalStack, default_directory
from matcher_receiver import ReceiverTuning
from orderchain import ReceiverConfig, SequencerConfig, open_receiver, open_sequencer
from orderchain_demo.scenario import set_up_chain
from sequencer import SequencerTuning

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from sequencer import Sequencer

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "a-walk-through.md"
PRODUCT: Final = frozenset({"chain_kernel", "sequencer", "matcher_receiver", "gapfill"})
QUIET_SECONDS: Final = 3_600.0
"""Beats, of the lease and of an idle publisher, and polls of the head must not come in between."""

OF_IDLE_CONNECTIONS: Final = frozenset({"Session._let_go", "close_connection"})
"""An idle connection is closed when its time is over, which may be in between."""

BEGIN: Final = "<!-- the way, by tools/walk.py -->"
END: Final = "<!-- end of the way -->"

SEQUENCER: Final = "sequencer"
RECEIVER: Final = "receiver"
SIDE: Final = ContextVar[str | None]("side", default=None)

Way = dict[str, list[str]]
"""The functions that run, by file, in the order in which they are first called."""


class Recorder:
    """Takes down which functions of ours run in its block, by the side that runs them.

    Both sides run on one loop, and neither waits for the other: a record may be fetched before the
    broker's acknowledgement is. So the context that a task has from its start says whose a function
    is, never the moment at which it runs.
    """

    def __init__(self) -> None:
        self._ways: dict[str, Way] = {}

    def way(self, side: str) -> Way:
        """Return what the side ran."""
        return self._ways.get(side, {})

    def __enter__(self) -> Self:
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _see(self, frame: FrameType, event: str, _: Any) -> None:  # noqa: ANN401 - as sys has it
        path = Path(frame.f_code.co_filename)
        side = SIDE.get()
        if event != "call" or side is None or not path.is_relative_to(ROOT):
            return
        name = path.relative_to(ROOT)
        function = frame.f_code.co_qualname
        if name.parts[0] not in PRODUCT or function in OF_IDLE_CONNECTIONS:
            return
        functions = self._ways.setdefault(side, {}).setdefault(name.as_posix(), [])
        if "<" not in function and function not in functions:
            functions.append(function)


@contextlib.contextmanager
def _on(side: str) -> Iterator[None]:
    """A side of the walk: what is called, and each task that is begun, in this block belongs to
    it."""
    token = SIDE.set(side)
    try:
        yield
    finally:
        SIDE.reset(token)


async def walk(sequencing: SequencerConfig, receiving: ReceiverConfig) -> tuple[Way, Way]:
    """Send an order through a chain that is new; return its ways to Kafka and to the checkpoint."""
    quiet = SequencerTuning(lease_seconds=QUIET_SECONDS, heartbeat_seconds=QUIET_SECONDS)
    sequencing = replace(sequencing, tuning=quiet)
    calm = ReceiverTuning(poll_after_seconds=QUIET_SECONDS, prove_seconds=QUIET_SECONDS)
    receiving = replace(receiving, tuning=calm)
    async with contextlib.AsyncExitStack() as opened:
        with _on(SEQUENCER):
            sequencer = await opened.enter_async_context(open_sequencer(sequencing))
        with _on(RECEIVER):
            receiver = await opened.enter_async_context(open_receiver(receiving))
        runs = aiter(receiver)
        # What the first order finds at its start is no part of the way of every day.
        first = await sequencer.submit("first", b"an order")
        with _on(RECEIVER):
            await receiver.checkpoint(await anext(runs))
        await _published(sequencer, first.id)
        with Recorder() as recorder:
            with _on(SEQUENCER):
                ack = await sequencer.submit("second", b"an order")
            await _published(sequencer, ack.id)
            with _on(RECEIVER):
                await receiver.checkpoint(await anext(runs))
    return recorder.way(SEQUENCER), recorder.way(RECEIVER)


async def _published(sequencer: Sequencer, id_: int) -> None:
    """Wait for the broker's acknowledgement; it may come after the receiver has the order."""
    while sequencer.stats().head_published < id_:  # noqa: ASYNC110 - no event reports it
        await asyncio.sleep(0.001)


async def walk_on_stack() -> tuple[Way, Way]:
    """Walk along a new chain of the local stack."""
    stack = LocalStack(default_directory(os.environ))
    stack.up()
    setup = await set_up_chain(stack)
    sequencing = SequencerConfig(
        chain_id=setup.chain_id,
        database=setup.sequencer_database,
        kafka=setup.kafka,
    )
    receiving = ReceiverConfig(
        chain_id=setup.chain_id,
        name="walk",
        database=setup.receiver_database,
        gap_databases=(setup.gap_database,),
        kafka=setup.kafka,
    )
    return await walk(sequencing, receiving)


def shown(to_kafka: Way, to_checkpoint: Way) -> str:
    """Return both ways as Markdown."""
    lines: list[str] = []
    for title, way in (("To Kafka", to_kafka), ("To the checkpoint", to_checkpoint)):
        lines += [f"### {title}: {len(way)} files", ""]
        for number, (name, functions) in enumerate(way.items(), 1):
            lines.append(f"{number}. [{name}](../{name}): {', '.join(functions)}")
        lines.append("")
    return "\n".join(lines)


def ways_in(page: str) -> list[set[str]]:
    """Return the files of both ways, as a page names them."""
    _, _, rest = page.partition(BEGIN)
    part, _, _ = rest.partition(END)
    ways = part.split("### ")[1:]
    return [
        {line.partition("[")[2].partition("]")[0] for line in way.splitlines() if "](" in line}
        for way in ways
    ]


def main() -> int:
    """Print the way, or write it."""
    asked = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    asked.add_argument("--write", action="store_true", help=f"write it into {PAGE.name}")
    chosen = asked.parse_args()
    found = shown(*asyncio.run(walk_on_stack()))
    if chosen.write:
        page = PAGE.read_text()
        before, _, rest = page.partition(BEGIN)
        _, _, after = rest.partition(END)
        PAGE.write_text(f"{before}{BEGIN}\n{found}{END}{after}")
    else:
        sys.stdout.write(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
