"""How many connections a process that leads many chains has for commits."""

import pytest

from sequencer.many import commit_connections


@pytest.mark.parametrize(
    ("chains", "connections"), [(1, 12), (200, 12), (384, 12), (385, 13), (1_000, 32)]
)
def test_at_most_32_chains_take_turns_at_a_connection(chains: int, connections: int) -> None:
    assert commit_connections(chains) == connections
