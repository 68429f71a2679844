"""Is this checkout faster or slower than another one of the same project?

Arms of the benchmark, by turns in both checkouts. Each has its own code, its own virtual
environment, and a PostgreSQL and a Kafka of its own, so that engines can be compared that store or
send something else.

    python -m benchmarks.two_checkouts ../before [--arm "engine 1000"] [--repeats 5]

The other checkout needs `make setup` first. The arms are those of one question (`--question`, by
default comparison).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from benchmarks.arms import interleave, ratio, spread
from benchmarks.host import RESULTS, describe_host

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

_ROOT: Final = Path(__file__).parent.parent
_ARMS: Final = ("engine 100", "engine 1000", "engine 5000")
_LINE_BYTES_MAX: Final = 16 * 1024 * 1024
"""A line of figures is some kilobytes; asyncio's own bound would cut a long one off."""

# Runs in the interpreter and the folder of either checkout, so it may use only what both have.
_CHILD: Final = """
import asyncio, json, os, sys
from benchmarks.chains import MAX_WAL_SIZE_MB, open_site, tune, write_log_files
from benchmarks.load import Load
from benchmarks.question import Scope
from benchmarks.questions import question_of
from benchmarks.running import run_load
from local_stack import LocalStack
from local_stack.folders import default_directory

name, question = sys.argv[1:]
folder = default_directory(os.environ)
stack = LocalStack(folder.with_name(f"{folder.name}-benchmarks-{name}"))
site = open_site(stack)
try:
    asyncio.run(tune(site))
    asyncio.run(write_log_files(site, MAX_WAL_SIZE_MB))
    for rows in (100, 1_000):
        asyncio.run(run_load(site, Load(rival="engine", orders=100_000, batch_rows=rows)))
    arms = {arm.name: arm for arm in question_of(question).arms(Scope())}
    print(json.dumps(sorted(arms)), flush=True)
    for line in sys.stdin:
        arm = arms[line.strip()]
        print(json.dumps(asyncio.run(question_of(question).run(site, arm, []))), flush=True)
finally:
    stack.down()
"""


class Checkout:
    """A child process in the folder of a checkout, which runs arms one at a time."""

    def __init__(self, root: Path, name: str, question: str) -> None:
        self._root = root
        self._arguments = ("-c", _CHILD, name, question)
        self._process: asyncio.subprocess.Process | None = None
        self.arms: list[str] = []
        """The names of the question's arms."""

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            self._root / ".venv/bin/python",
            *self._arguments,
            cwd=self._root,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_LINE_BYTES_MAX,
        )
        self.arms = await self._answer()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            await self._process.wait()

    async def run(self, arm: str) -> dict[str, Any]:
        """Return the figures of one run. Raises RuntimeError where the child has ended."""
        if self._process is None or self._process.stdin is None:
            raise RuntimeError("not entered")
        self._process.stdin.write(f"{arm}\n".encode())
        figures: dict[str, Any] = await self._answer()
        return figures

    async def _answer(self) -> Any:  # noqa: ANN401 - JSON
        if self._process is None or self._process.stdout is None:
            raise RuntimeError("not entered")
        while line := await self._process.stdout.readline():
            if line[:1] in b"[{":  # not what the child's own parts print
                return msgspec.json.decode(line)
        raise RuntimeError(f"the benchmark of {self._root} has ended (see above)")


async def measure(
    other: Path, question: str, arms: Sequence[str], repeats: int, figure: str
) -> dict[str, Any]:
    """Run every arm in both checkouts by turns; return the figures by arm."""
    result: dict[str, Any] = {}
    async with AsyncExitStack() as stack:
        here = await stack.enter_async_context(Checkout(_ROOT, "here", question))
        there = await stack.enter_async_context(Checkout(other, "there", question))
        for arm in arms:
            if arm not in here.arms or arm not in there.arms:
                raise SystemExit(f"--arm was {arm!r}, expected one of {', '.join(here.arms)}")

            async def one(checkout: Checkout, arm: str = arm) -> float:
                return float((await checkout.run(arm))[figure])

            figures = await interleave(
                {"here": lambda: one(here), "there": lambda: one(there)}, repeats
            )
            result[arm] = {
                **{name: spread(values) for name, values in figures.items()},
                "here_to_there": ratio(figures, "here", "there"),
            }
            found = result[arm]
            against = found["here_to_there"]
            print(
                f"{arm:24} {found['here']['median']:9,.0f}  other {found['there']['median']:9,.0f}"
                f"  / other {against['median']:.2f} ({against['min']:.2f} to {against['max']:.2f})",
                flush=True,
            )
    return result


def main() -> None:
    """Measure, print, and add a line to the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("other", type=Path)
    parser.add_argument("--question", default="comparison")
    parser.add_argument("--arm", action="append")
    parser.add_argument("--figure", default="delivered_per_second")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--dry", action="store_true", help="print only")
    arguments = parser.parse_args()
    other = arguments.other.resolve()
    if not (other / ".venv/bin/python").exists():
        sys.exit(f"other was {str(other)!r}, expected a checkout after `make setup`")
    arms = arguments.arm or _ARMS
    found = asyncio.run(
        measure(other, arguments.question, arms, arguments.repeats, arguments.figure)
    )
    if arguments.dry:
        return
    result = {
        "benchmark": "two_checkouts",
        "host": describe_host(),
        "question": arguments.question,
        "figure": arguments.figure,
        "repeats": arguments.repeats,
        "by_arm": found,
    }
    with (RESULTS / "two_checkouts.jsonl").open("ab") as file:
        file.write(msgspec.json.encode(result) + b"\n")


if __name__ == "__main__":
    main()
