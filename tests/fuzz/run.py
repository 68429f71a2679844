"""Gives a target bytes that reach ever more of the code, by atheris: `make fuzz`.

    python -m tests.fuzz.run TARGET [options of libFuzzer]

What was found to reach more is kept in `build/fuzz`, and is where the next run goes on. An input
that fails is kept there, too: it belongs into the seeds, with the fix.
"""

import sys
from pathlib import Path
from typing import Final

import atheris

HERE: Final = Path(__file__).parent
PARTS: Final = (
    "chain_kernel", "chain_verifier", "chainctl", "sequencer", "tests.unit.chain_kernel.test_speed",
)  # fmt: skip
"""What is watched: our own code, and not that of libraries."""
BOUNDS: Final = ("-rss_limit_mb=2048", "-malloc_limit_mb=1024", "-timeout=20")


def main() -> None:
    name, *options = sys.argv[1:]
    with atheris.instrument_imports(include=PARTS):
        from tests.fuzz.targets import TARGETS
        from tests.unit.chain_kernel import test_speed
    compiled = [
        found.hypothesis.fuzz_one_input
        for found in vars(test_speed).values()
        if hasattr(found, "hypothesis")
    ]
    TARGETS["speed"] = lambda data: compiled[data[0] % len(compiled)](data[1:]) if data else None
    kept = Path("build", "fuzz", name)
    kept.mkdir(parents=True, exist_ok=True)
    folders = [str(kept), *map(str, filter(Path.is_dir, [HERE / "seeds" / name]))]
    found = f"-artifact_prefix={kept.parent}/{name}-"
    atheris.Setup([sys.argv[0], *BOUNDS, found, *options, *folders], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
