import pytest

from chain_kernel.clients.topics import TopicDescription, certain_copies, durability_warning


def topic(replicas: int, minimum: str | None, name: str = "orders") -> TopicDescription:
    settings = {} if minimum is None else {"min.insync.replicas": minimum}
    return TopicDescription(name=name, partitions=1, replicas=replicas, settings=settings)


@pytest.mark.parametrize(
    ("replicas", "minimum", "copies"),
    [(1, "1", 1), (3, "1", 1), (3, "2", 2), (3, "3", 3), (2, "2", 2), (1, "2", 0), (2, None, 1)],
)
def test_only_certain_copies_count(replicas: int, minimum: str | None, copies: int) -> None:
    described = topic(replicas, minimum)
    assert certain_copies(described) == copies
    assert (durability_warning([described], "lost") is None) == (copies >= 2)


def test_warning_is_one_line_that_names_the_topics_and_what_they_have() -> None:
    safe = topic(3, "2", "safe")
    missing = TopicDescription(name="missing")
    many = [topic(1, "1", f"t{number}") for number in range(7)]
    line = durability_warning([safe, missing, *many], "it is gone")
    assert line is not None
    assert "\n" not in line
    assert "t0 (replicas 1, min.insync.replicas 1)" in line
    assert "and 2 more: it is gone" in line
    assert "safe" not in line
    assert "missing" not in line
    assert durability_warning([safe, missing], "it is gone") is None
