"""Follows one order and prints its way: `python tools/walk.py`. It starts the local stack.

A real sequencer and a real receiver run in this process. The way to Kafka is what runs between
`submit` and the broker's acknowledgement; the way to the checkpoint is what runs between the wait
for the order and the stored checkpoint. Each file of ours is listed once, in the order in which the
way first comes to it, with the functions that it runs there.

`--write` puts the list into `docs/a-walk-through.md`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from msgspec.structs import replace

from local_stack import LocalStack, default_directory
from matcher_receiver import ReceiverTuning
from orderchain import ReceiverConfig, SequencerConfig, open_receiver, open_sequencer
from orderchain_demo.scenario import set_up_chain
from sequencer import SequencerTuning

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "a-walk-through.md"
PRODUCT: Final = frozenset({"chain_kernel", "sequencer", "matcher_receiver", "gapfill"})
QUIET_SECONDS: Final = 3_600.0
"""Beats, of the lease and of an idle publisher, and polls of the head must not come in between."""

BEGIN: Final = "<!-- the way, by tools/walk.py -->"
END: Final = "<!-- end of the way -->"

Way = dict[str, list[str]]
"""The functions that run, by file, in the order in which they are first called."""


class Recorder:
    """Takes down which functions of ours run in its block."""

    def __init__(self) -> None:
        self.way: Way = {}

    def __enter__(self) -> Self:
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def aside(self, look: Callable[[], int]) -> int:
        """Return what `look` returns: it is the watcher's own call, and no part of the way."""
        sys.setprofile(None)
        try:
            return look()
        finally:
            sys.setprofile(self._see)

    def _see(self, frame: FrameType, event: str, _: Any) -> None:  # noqa: ANN401 - as sys has it
        path = Path(frame.f_code.co_filename)
        if event != "call" or not path.is_relative_to(ROOT):
            return
        name = path.relative_to(ROOT)
        if name.parts[0] not in PRODUCT:
            return
        functions = self.way.setdefault(name.as_posix(), [])
        function = frame.f_code.co_qualname
        if "<" not in function and function not in functions:
            functions.append(function)


async def walk(sequencing: SequencerConfig, receiving: ReceiverConfig) -> tuple[Way, Way]:
    """Send an order through a chain that is new; return its ways to Kafka and to the checkpoint."""
    to_kafka, to_checkpoint = Recorder(), Recorder()
    quiet = SequencerTuning(lease_seconds=QUIET_SECONDS, heartbeat_seconds=QUIET_SECONDS)
    sequencing = replace(sequencing, tuning=quiet)
    calm = ReceiverTuning(poll_after_seconds=QUIET_SECONDS, prove_seconds=QUIET_SECONDS)
    receiving = replace(receiving, tuning=calm)
    async with open_sequencer(sequencing) as sequencer, open_receiver(receiving) as receiver:
        runs = aiter(receiver)
        # What the first order finds at its start is no part of the way of every day.
        first = await sequencer.submit("first", b"an order")
        await receiver.checkpoint(await anext(runs))
        # No event reports the publication of one order; a broker may answer after the receiver.
        while sequencer.stats().head_published < first.id:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        with to_kafka:
            ack = await sequencer.submit("second", b"an order")
            while to_kafka.aside(lambda: sequencer.stats().head_published) < ack.id:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        with to_checkpoint:
            await receiver.checkpoint(await anext(runs))
    return to_kafka.way, to_checkpoint.way


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
