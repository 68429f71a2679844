"""What a process opens calms its collector and keeps freed memory; the tuning may say no.

Memory that is kept costs no fault of a page when it is used again.
"""

import sys

import pytest

from tests.programs import completed

SEQUENCER = """
from sequencer import SequencerConfig as Config, SequencerTuning as Tuning
from sequencer import open_sequencer as open_it
given = {"database": "postgresql://nobody@127.0.0.1:1/x", "kafka": "127.0.0.1:1"}
"""
RECEIVER = """
from matcher_receiver import ReceiverConfig as Config, ReceiverTuning as Tuning
from orderchain import open_receiver as open_it
given = {"database": "postgresql://nobody@127.0.0.1:1/x", "kafka": "127.0.0.1:1", "name": "r"}
"""
THEN = """
import gc, resource
before, frozen = gc.get_threshold(), gc.get_freeze_count()  # Python 3.12 freezes some itself
for _ in range(2):
    open_it(Config(chain_id=1, tuning=Tuning(**{tuning}), **given))
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
begin = faults()
for _ in range(10):  # too large for a hole in the heap, and more than what glibc keeps by itself
    frames = [bytearray(2**23) for _ in range(4)]
    del frames
print(gc.get_threshold() != before, gc.get_freeze_count() > frozen, faults() - begin < 20_000)
"""


@pytest.mark.parametrize("opening", [SEQUENCER, RECEIVER], ids=["sequencer", "receiver"])
@pytest.mark.parametrize(
    ("tuning", "expected"),
    [({}, "True True True"), ({"calm_collector": False}, "False False False")],
)
def test_collector_is_calm_once_something_is_open(
    opening: str, tuning: dict[str, bool], expected: str
) -> None:
    program = opening + THEN.format(tuning=tuning)
    done = completed(sys.executable, "-c", program)
    assert done.stdout.strip() == expected, done.stderr
